//! `pvisor logs`.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};

use pvisor_spec::{ExecutorKind, ExitCode};

use super::surroundings;
use crate::args::LogsArgs;
use crate::report::{Failure, answer, plain, plain_path};

/// Longest line that is held at once, in bytes; longer ones are cut into several.
const LINE: u64 = 64 << 10;

pub(super) fn logs(args: &LogsArgs) -> Result<u8, Failure> {
    let (ambient, store) = surroundings()?;
    let run = store.find(&args.run, &ambient.cwd)?;
    let path = run.console_log();
    let log = match File::open(&path) {
        Ok(log) => log,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let failure = Failure::new("no_log", format!("{} has no console log", run.id));
            return Err(match run.record.spec.executor {
                Some(ExecutorKind::Krun) => failure.hint("its guest did not get as far as to say something"),
                _ => failure.hint("only guests have a console; the command's own output went where pvisor's did"),
            });
        }
        Err(e) => return Err(Failure::new("no_log", format!("can't read {}: {e}", plain_path(&path)))),
    };
    // What was in the log before it became too long for one file.
    if let Ok(older) = File::open(path.with_extension("log.old")) {
        print(older)?;
    }
    print(log)?;
    Ok(ExitCode::OK)
}

/// As it is into a file or a pipe; on a terminal without what would drive it, for a guest may say anything.
fn print(mut file: File) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return answer(|out| io::copy(&mut file, out).map(|_| ()));
    }
    answer(|out| {
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while io::Read::take(&mut reader, LINE).read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line).replace("\r\n", "\n");
            out.write_all(plain(&text).as_bytes())?;
            line.clear();
        }
        Ok(())
    })
}
