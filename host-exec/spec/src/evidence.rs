//! Evidence: which controls were asked for and which were really installed.

use serde::{Deserialize, Serialize};

use crate::{AnswerRecord, CommandEnd, ExecutorKind, RunSpec};

/// Name and version of the Run Bundle's format.
pub const BUNDLE_SCHEMA: &str = "pvisor.bundle/1";

/// A kind of access that a run can be kept from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Reading files outside what the run is for.
    FilesystemRead,
    /// Writing files outside the stage.
    FilesystemWrite,
    /// Reaching other hosts.
    Network,
    /// Leaving processes behind, or reaching those outside.
    Subprocess,
    /// Using up CPU, memory, disk.
    Resources,
    /// Learning credentials.
    Secrets,
    /// Reaching devices.
    Devices,
}

impl Dimension {
    /// All of them, in the order that a bundle lists them.
    pub const ALL: [Self; 7] = [
        Self::FilesystemRead,
        Self::FilesystemWrite,
        Self::Network,
        Self::Subprocess,
        Self::Resources,
        Self::Secrets,
        Self::Devices,
    ];
}

/// How much a control matters to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Without it the run does not start.
    Required,
    /// Installed where the machine can.
    Preferred,
    /// Not asked for.
    #[default]
    None,
}

/// How far a mechanism holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The command can't get past it.
    Enforced,
    /// It holds for commands that play along.
    Cooperative,
    /// It does not hold.
    Unenforced,
}

/// How a fact is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// Read back from the kernel.
    Observed,
    /// The installing call said so.
    Returned,
    /// It follows from how the executor is built.
    Assumed,
}

/// One enforced mechanism, by the name it has in bundles: `pid_namespace`, `stage_mount`, `guest_kernel` …
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Control(pub String);

/// What an installation returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Receipt {
    /// What was installed.
    pub control: Control,
    /// What it alone controls as far as its level says. Empty where it only keeps other controls from being undone.
    pub dimensions: Vec<Dimension>,
    /// How far it holds.
    pub level: Level,
    /// How that is known.
    pub known_by: KnownBy,
    /// What was read back or returned: a lower-case fragment.
    pub detail: String,
}

/// Something that was tried inside, as the command would, before the command started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Probe {
    /// What was tried: a word for programs.
    pub name: String,
    /// The control that is to stop it.
    pub control: Control,
    /// What is to be seen: a fragment.
    pub expected: String,
    /// What was seen.
    pub observed: String,
    /// Whether that is as it should be.
    pub holds: bool,
}

/// What a bundle says of one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Observation {
    /// Which one.
    pub dimension: Dimension,
    /// What was asked for.
    pub need: Need,
    /// The strongest level among the receipts; unenforced where there is none.
    pub level: Level,
    /// How the strongest receipt is known; `None` where there is none.
    pub known_by: Option<KnownBy>,
    /// The names of the controls behind it.
    pub controls: Vec<Control>,
}

/// The facts that most readers look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Safety {
    /// No socket of the command gets past the network policy.
    pub network_non_bypassable: bool,
    /// No file outside the granted ones can be read.
    pub filesystem_read_non_bypassable: bool,
    /// No file outside the stage and the granted ones can be written.
    pub filesystem_write_non_bypassable: bool,
    /// No process of the command outlives the run.
    pub subprocess_non_bypassable: bool,
}

/// How the run as a whole ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command ended by itself, by a signal or by the time limit.
    Completed(CommandEnd),
    /// pvisor refused before the command started.
    Refused(Interruption),
    /// The run broke under the command.
    Interrupted(Interruption),
}

/// Why a run did not complete. The texts are lower-case fragments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interruption {
    /// A word for programs.
    pub kind: String,
    /// What happened.
    pub message: String,
    /// What to try; may be empty.
    pub hint: String,
}

/// Where a run's stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// The run had none.
    None,
    /// Complete and immutable.
    Sealed,
    /// Not sealed: can't be applied.
    Unsealed,
    /// Thrown away.
    Discarded,
}

/// What a bundle says of the stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageRecord {
    /// Where it stood at the end of the run.
    pub state: StageState,
    /// Number of changed paths, where sealed.
    pub changes: Option<u64>,
    /// BLAKE3 of the seal, hexadecimal, where sealed.
    pub seal: Option<String>,
}

/// The Run Bundle: the record that each run leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bundle {
    /// [`BUNDLE_SCHEMA`].
    pub schema: String,
    /// The program that wrote it, with its version.
    pub written_by: String,
    /// What was asked for.
    pub spec: RunSpec,
    /// What ran it; `None` where none could be selected.
    pub executor: Option<ExecutorKind>,
    /// Why that executor, where it was not named.
    pub selection: String,
    /// Milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub ended_ms: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Every receipt, in order of installation.
    pub receipts: Vec<Receipt>,
    /// What was tried before the command started; empty where the executor tries nothing.
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// One per dimension, in the order of [`Dimension::ALL`].
    pub observations: Vec<Observation>,
    /// Derived from the observations.
    pub safety: Safety,
    /// The stage.
    pub stage: StageRecord,
    /// What the person was asked while the command ran, and the answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<AnswerRecord>,
    /// BLAKE3 over all fields above as compact JSON, hexadecimal: a later edit shows.
    pub digest: String,
}

impl Observation {
    /// What the receipts say, dimension by dimension.
    pub fn from_receipts(receipts: &[Receipt], needs: &[(Dimension, Need)]) -> Vec<Self> {
        Dimension::ALL
            .into_iter()
            .map(|dimension| {
                let of = || receipts.iter().filter(move |r| r.dimensions.contains(&dimension));
                let strongest = of().min_by_key(|r| (r.level as u8, r.known_by as u8));
                Self {
                    dimension,
                    need: needs.iter().find(|(d, _)| *d == dimension).map_or(Need::None, |(_, n)| *n),
                    level: strongest.map_or(Level::Unenforced, |r| r.level),
                    known_by: strongest.map(|r| r.known_by),
                    controls: of().map(|r| r.control.clone()).collect(),
                }
            })
            .collect()
    }

    /// Whether the dimension was required and is not controlled well enough for the command to start. Only a `strict` run
    /// needs more than what holds for commands that play along.
    pub fn is_lacking(&self, strict: bool) -> bool {
        let enough = self.level == Level::Enforced || self.level == Level::Cooperative && !strict;
        self.need == Need::Required && !enough
    }
}

impl Safety {
    /// True only where a dimension is enforced.
    pub fn from_observations(observations: &[Observation]) -> Self {
        let enforced = |d| observations.iter().any(|o| o.dimension == d && o.level == Level::Enforced);
        Self {
            network_non_bypassable: enforced(Dimension::Network),
            filesystem_read_non_bypassable: enforced(Dimension::FilesystemRead),
            filesystem_write_non_bypassable: enforced(Dimension::FilesystemWrite),
            subprocess_non_bypassable: enforced(Dimension::Subprocess),
        }
    }
}

impl Bundle {
    /// The digest that belongs to the other fields.
    pub fn compute_digest(&self) -> String {
        let blank = Self { digest: String::new(), ..self.clone() };
        let json = serde_json::to_vec(&blank).unwrap_or_default();
        blake3::hash(&json).to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(control: &str, level: Level, known_by: KnownBy) -> Receipt {
        Receipt {
            control: Control(control.to_owned()),
            dimensions: vec![Dimension::Network],
            level,
            known_by,
            detail: String::new(),
        }
    }

    #[test]
    fn the_strongest_receipt_decides_and_none_means_unenforced() {
        let receipts = [
            receipt("proxy", Level::Cooperative, KnownBy::Observed),
            receipt("network_namespace", Level::Enforced, KnownBy::Returned),
        ];
        let all = Observation::from_receipts(&receipts, &[(Dimension::Network, Need::Required)]);
        assert_eq!(all.len(), 7);
        let network = &all[2];
        assert_eq!((network.level, network.need), (Level::Enforced, Need::Required));
        assert_eq!(network.known_by, Some(KnownBy::Returned));
        assert_eq!(network.controls.len(), 2);
        assert_eq!(all[0].level, Level::Unenforced);
        let safety = Safety::from_observations(&all);
        assert!(safety.network_non_bypassable && !safety.filesystem_read_non_bypassable);
    }
}
