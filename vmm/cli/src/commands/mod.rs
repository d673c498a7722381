//! One module per command.

mod access;
mod apply;
mod attempt;
mod checkpoint;
mod completions;
mod discard;
mod doctor;
mod fork;
mod image;
mod kill;
mod list;
mod logs;
mod man;
mod profile;
mod review;
mod run;
mod schema;
mod status;
mod undo;

use crate::args::Command;
use crate::report::{Failure, chain};
use crate::resolve::Ambient;
use crate::runs::Store;
use crate::stages;
use crate::worker;

/// Does what was asked for; the number is the exit code.
pub(crate) fn dispatch(command: &Command) -> u8 {
    give_up_originals(command);
    let done = match command {
        Command::InternalWorker(args) => return worker::work(args),
        Command::Run(args) => return run::run(args),
        Command::List(args) => list::list(args),
        Command::Status(args) => status::status(args),
        Command::Kill(args) => kill::kill(args),
        Command::Logs(args) => logs::logs(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Schema(args) => schema::schema(args),
        Command::Completions(args) => completions::completions(args),
        Command::Man => man::man(),
        Command::Review(args) => review::review(args),
        Command::Apply(args) => apply::apply(args),
        Command::Undo(args) => undo::undo(args),
        Command::Checkpoint(command) => checkpoint::checkpoint(command),
        Command::Fork(args) => fork::fork(args),
        Command::Discard(args) => discard::discard(args),
        Command::Access(command) => access::access(command),
        Command::Image(command) => image::image(command),
        Command::Profile(command) => profile::profile(command),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            failure.tell(command.json());
            failure.code
        }
    }
}

/// What applies replaced is kept for a time; each command gives up what has had its time.
fn give_up_originals(command: &Command) {
    let aloof = matches!(
        command,
        Command::InternalWorker(_) | Command::Completions(_) | Command::Man | Command::Schema(_) | Command::Profile(_)
    );
    // Surroundings that make no sense are the command's own business.
    if !aloof && let Ok((_, store)) = surroundings() {
        stages::give_up_originals(&store);
    }
}

/// The caller's surroundings and runs.
fn surroundings() -> Result<(Ambient, Store), Failure> {
    let ambient = Ambient::read()?;
    let store = Store::at(ambient.run_home.clone());
    Ok((ambient, store))
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new("output", format!("can't write the answer: {}", chain(&error)))
    }
}
