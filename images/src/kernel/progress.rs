//! How far a build is.

/// What a build does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another process builds; its result will do.
    Waiting,
    /// The distribution's source package is fetched.
    Downloading,
    /// The source is hashed, to know whether it was built before.
    Hashing,
    /// The source is unpacked.
    Unpacking,
    /// The configuration is made.
    Configuring,
    /// The compiler runs: nearly all of the time.
    Compiling,
    /// The result is checked, synced and moved to its place.
    Publishing,
}

impl Phase {
    /// For people: what happens.
    pub fn text(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for another build",
            Self::Downloading => "fetching the source",
            Self::Hashing => "hashing the source",
            Self::Unpacking => "unpacking the source",
            Self::Configuring => "configuring",
            Self::Compiling => "compiling",
            Self::Publishing => "publishing",
        }
    }
}

/// One report.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What happens.
    pub phase: Phase,
    /// Part of the phase that is done, 0 to 1; `None` where that is not known.
    pub fraction: Option<f64>,
    /// The last line of output, trimmed; may be empty.
    pub detail: &'a str,
}

/// Takes reports.
pub type Report<'a> = &'a mut dyn FnMut(Progress<'_>);
