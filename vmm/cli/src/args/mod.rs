//! The command line.

mod checkpoint;
mod profile;
mod value;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

pub(crate) use checkpoint::{CheckpointCommand, CollectArgs, CreateArgs, ForkArgs, RestoreArgs, SavepointArgs};
pub(crate) use profile::{ProfileCommand, ProfileShowArgs};
pub(crate) use value::{AccessRule, AccessVerdict, Bytes, EnvPair, Memory, MountArg, MountUse, Published, Rate, Span};

/// Runs a command where it can't change your project, and keeps what it changed for you to review and apply.
#[derive(Debug, Parser)]
#[command(name = "pvisor", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command; what it changes in the project is staged
    Run(Box<RunArgs>),
    /// List the runs, newest first
    List(JsonArgs),
    /// Tell what became of a run
    Status(StatusArgs),
    /// Show what a run changed
    Review(ReviewArgs),
    /// Write a run's changes to the project
    Apply(ApplyArgs),
    /// Put back what applying a run replaced or removed
    Undo(UndoArgs),
    /// Throw a run's changes away
    Discard(RunNameArgs),
    /// Savepoints of a run's stage
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Make more runs with the changes of one that is over
    Fork(ForkArgs),
    /// End a run that is going on
    Kill(RunNameArgs),
    /// Print what the guest's console said, or what the command's network did
    Logs(LogsArgs),
    /// Remembered answers to `run --ask`
    #[command(subcommand)]
    Access(AccessCommand),
    /// What known agents need in a sandbox
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Guest kernels and other artefacts
    #[command(subcommand)]
    Image(ImageCommand),
    /// Tell what this machine can do, and what to do about the rest
    Doctor(JsonArgs),
    /// Print the JSON schema of a file that pvisor writes
    Schema(SchemaArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page
    Man,
    #[command(hide = true)]
    InternalWorker(WorkerArgs),
}

/// `pvisor run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// How to run it: in a VM where that works and else on the host, or exactly one of the executors
    #[arg(long, value_enum, value_name = "EXECUTOR", default_value_t)]
    pub(crate) executor: ExecutorArg,
    /// Keep the changes in this directory: new or empty, outside the project
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) stage: Option<PathBuf>,
    /// The directory whose changes are staged [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) project: Option<PathBuf>,
    /// Where the command starts [default: the current directory where it is in the project, else the project]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) cwd: Option<PathBuf>,
    /// Sandbox, private home directory, few variables, no network: what an unattended agent should have
    #[arg(long)]
    pub(crate) safe: bool,
    /// As --safe, and ask on the terminal about each new host; the answers can be remembered (see `pvisor access`)
    #[arg(long)]
    pub(crate) ask: bool,
    /// As --safe, and do not start unless every kind of access is known to be controlled
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also give the command what this agent needs: its state, its variables, its services (`pvisor profile list`)
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Virtual CPUs of the guest; processors that a command on the host can keep busy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) cpus: Option<u8>,
    /// Memory of the guest, or of a command on the host: 512M, 4G …
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Memory>,
    /// Processes and threads at a time, on the host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) pids: Option<u32>,
    /// Open files of each process, on the host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) max_open_files: Option<u32>,
    /// Size of each file that is written, on the host: 512M, 4G …
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_file_size: Option<Bytes>,
    /// Processor time of each process, on the host: 90s, 10m, 2h …
    #[arg(long, value_name = "DURATION")]
    pub(crate) max_cpu_time: Option<Span>,
    /// End the command by force after this time: 90s, 10m, 2h …
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<Span>,
    /// Time between asking the command to end and ending it by force [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) grace: Option<Span>,
    /// Set a variable of the command, or pass on the caller's with NAME alone
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvPair>,
    /// Pass on the caller's variable of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) pass_env: Vec<OsString>,
    /// Root filesystem of the guest [default: the host's own, secrets hidden]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) rootfs: Option<PathBuf>,
    /// When the stage is synced to disk [default: checkpoint]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) stage_durability: Option<DurabilityArg>,
    /// Most that the stage may occupy on disk: 500M, 2G …; what goes past it fails as on a full disk
    #[arg(long, value_name = "SIZE")]
    pub(crate) stage_max_size: Option<Bytes>,
    /// What of the host's filesystem the host executor shows
    #[arg(long, value_enum, value_name = "VIEW", default_value_t)]
    pub(crate) filesystem: FilesystemArg,
    /// Show a path of the host in the sandbox, for reading or also for writing
    #[arg(long, value_name = "SRC:read|write[:TARGET]")]
    pub(crate) mount: Vec<MountArg>,
    /// Make paths look absent in the sandbox: a relative pattern stands for any depth, `~/` for the home directory
    #[arg(long, value_name = "GLOB:deny")]
    pub(crate) access: Vec<AccessRule>,
    /// Leave a command on the host its capabilities: real root can then leave what it is kept in
    #[arg(long)]
    pub(crate) keep_capabilities: bool,
    /// Let a command on the host use io_uring
    #[arg(long)]
    pub(crate) allow_io_uring: bool,
    /// Let a command on the host make user namespaces, as browsers do for their own sandbox
    #[arg(long)]
    pub(crate) allow_user_namespaces: bool,
    /// Deny all network but the command's own loopback
    #[arg(long, conflicts_with_all = ["overlaynet_allow", "overlaynet_deny", "overlaynet_limit", "publish"])]
    pub(crate) overlaynet_deny_all: bool,
    /// Allow only what is named: NAME, *.SUFFIX, ADDRESS or RANGE, each with :PORT or without; `public` for all public
    /// addresses
    #[arg(long, value_name = "DESTINATION")]
    pub(crate) overlaynet_allow: Vec<String>,
    /// Deny this destination, even if it is allowed elsewhere
    #[arg(long, value_name = "DESTINATION")]
    pub(crate) overlaynet_deny: Vec<String>,
    /// Most bytes a second in each direction: 500K, 10M …
    #[arg(long, value_name = "SIZE")]
    pub(crate) overlaynet_limit: Option<Rate>,
    /// Offer a TCP port of the command on the host: PORT, PORT:PORT or ADDRESS:PORT:PORT; port 0 on the host chooses a
    /// free one
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) publish: Vec<Published>,
    /// Accept a KVM that emulates guest kernel code, 10 to 50 times slower
    #[arg(long)]
    pub(crate) force_slow_kvm: bool,
    /// Give the command a terminal of its own
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) tty: TtyArg,
    /// Print what would be run as JSON, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Report as one JSON document on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// A choice of executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorArg {
    /// A VM where this machine runs one at speed, else the host; always staged
    #[default]
    Auto,
    /// A VM
    Krun,
    /// A process of the host
    Host,
    /// An OCI container
    #[value(hide = true)]
    Oci,
}

/// When a stage is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// At the end of the run
    Checkpoint,
    /// Also before each path is changed first
    Strict,
}

/// What the host executor shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilesystemArg {
    /// All of it
    #[default]
    Host,
    /// A projected root
    Sandbox,
}

/// When the command gets a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TtyArg {
    /// In a VM, where standard input and output are terminals
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// A command with nothing but `--json`.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A command on one run.
#[derive(Debug, Args)]
pub(crate) struct RunNameArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN", default_value = "last")]
    pub(crate) run: OsString,
    /// Also list what changed
    #[arg(long)]
    pub(crate) review: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor review`.
#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN", default_value = "last")]
    pub(crate) run: OsString,
    /// As a unified diff that `git apply` takes
    #[arg(long)]
    pub(crate) diff: bool,
    /// As the number of lines that changed in each file
    #[arg(long, conflicts_with = "diff")]
    pub(crate) stat: bool,
    /// As one page for a browser, written to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["diff", "stat"], value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Answer in JSON
    #[arg(long, conflicts_with_all = ["diff", "stat"])]
    pub(crate) json: bool,
}

/// Which changes: those that every option lets through, and what they can't go without.
#[derive(Debug, Default, Args)]
pub(crate) struct SelectionArgs {
    /// Only this path of the project and what is below it
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,
    /// Only paths of the project that match
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// No paths of the project that match
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
}

/// `pvisor apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Write here instead of the project
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) target: Option<PathBuf>,
    /// Check everything, write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also take changes that make this machine run something: git hooks, files that shells and editors run, set-id bits …
    #[arg(long)]
    pub(crate) allow_exec_sinks: bool,
    /// Keep what is replaced or removed for so many days, so that `pvisor undo` can put it back [default: 7]
    #[arg(
        long,
        value_name = "DAYS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "7",
        value_parser = clap::value_parser!(u16).range(1..=3650)
    )]
    pub(crate) keep_originals: Option<u16>,
    /// Keep nothing: the apply can't be undone
    #[arg(long, conflicts_with = "keep_originals")]
    pub(crate) no_keep_originals: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor undo`.
#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN")]
    pub(crate) run: OsString,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// The directory that was applied to, if it was not the project
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) target: Option<PathBuf>,
    /// Check everything, write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Id, unique beginning of an id, stage directory, or `last`
    #[arg(value_name = "RUN", default_value = "last")]
    pub(crate) run: OsString,
    /// What the command's network did, instead of what the guest's console said
    #[arg(long)]
    pub(crate) network: bool,
    /// Go on until the run is over
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// One JSON document a line
    #[arg(long, requires = "network")]
    pub(crate) json: bool,
}

/// `pvisor access`.
#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// List the remembered answers
    List(JsonArgs),
    /// Forget remembered answers: the questions are asked again
    Forget(ForgetArgs),
}

/// `pvisor access forget`.
#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// What was asked for, as `pvisor access list` shows it
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "project"])]
    pub(crate) names: Vec<String>,
    /// Only answers for the project in this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) project: Option<PathBuf>,
    /// All of them
    #[arg(long, conflicts_with_all = ["names", "project"])]
    pub(crate) all: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build the guest kernel
    Kernel(KernelArgs),
    /// List kernels and other artefacts
    List(JsonArgs),
    /// Remove one
    Rm(ImageNameArgs),
    /// Remove what is not used any more
    Gc(JsonArgs),
}

/// `pvisor image rm`.
#[derive(Debug, Args)]
pub(crate) struct ImageNameArgs {
    /// Its name, or a unique beginning of it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor image kernel`.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Linux source: a directory or a tarball [default: the package linux-source-6.12]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) source: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pvisor schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Which file
    #[arg(value_enum, value_name = "FILE")]
    pub(crate) file: SchemaArg,
}

/// A file with a published schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaArg {
    /// The Run Bundle, `bundle.json`
    Bundle,
    /// What `pvisor review --json` answers
    Review,
}

/// `pvisor completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// What a worker process is told on its command line.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Descriptor of the job
    #[arg(long)]
    pub(crate) job: i32,
    /// Descriptor for events
    #[arg(long)]
    pub(crate) events: i32,
    /// The supervisor's process id
    #[arg(long)]
    pub(crate) supervisor: i32,
    /// Signals that stay blocked
    #[arg(long)]
    pub(crate) blocked: Vec<i32>,
}

impl Command {
    /// Whether failures are told as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::List(args)
            | Self::Doctor(args)
            | Self::Access(AccessCommand::List(args))
            | Self::Image(ImageCommand::List(args) | ImageCommand::Gc(args)) => args.json,
            Self::Access(AccessCommand::Forget(args)) => args.json,
            Self::Status(args) => args.json,
            Self::Review(args) => args.json,
            Self::Apply(args) => args.json,
            Self::Undo(args) => args.json,
            Self::Checkpoint(command) => command.json(),
            Self::Profile(command) => command.json(),
            Self::Fork(args) => args.json,
            Self::Discard(args) | Self::Kill(args) => args.json,
            Self::Image(ImageCommand::Kernel(args)) => args.json,
            Self::Image(ImageCommand::Rm(args)) => args.json,
            Self::Logs(_) | Self::Schema(_) | Self::Completions(_) | Self::Man | Self::InternalWorker(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_is_the_commands() {
        let cli = Cli::try_parse_from(["pvisor", "run", "--cpus", "2", "--", "ls", "--json", "--"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!(args.command, ["ls", "--json", "--"]);
        assert!(!args.json);
    }

    #[test]
    fn a_command_without_dashes_is_refused() {
        assert!(Cli::try_parse_from(["pvisor", "run", "ls"]).is_err());
    }
}
