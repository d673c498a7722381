//! Who answers the worker's questions: asks the person, keeps what was answered.

use std::path::Path;

use pvisor_spec::{Answer, AnswerRecord, AnswerScope, AnsweredBy, OsBytes, Question, Subject};

use super::memory::{Memory, Remembered};
use super::shown;
use crate::report::{chain, plain, say};
use crate::runs::now_ms;
use crate::supervisor::Worker;

/// Answers the questions of one run.
#[derive(Debug)]
pub(crate) struct Clerk {
    memory: Memory,
    project: OsBytes,
    /// Nothing more is to be asked.
    enough: bool,
    /// Whether it was said that there is no terminal.
    told: bool,
}

/// What the person can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    allowed: bool,
    scope: AnswerScope,
    enough: bool,
}

impl Clerk {
    /// For a run on this project; answers are remembered beside the runs.
    pub(crate) fn new(run_home: &Path, project: OsBytes) -> Self {
        Self { memory: Memory::at(run_home), project, enough: false, told: false }
    }

    /// Has the question answered; the answer goes to the worker, the record is kept.
    pub(crate) fn answer(&mut self, worker: &mut Worker, question: &Question) -> (Answer, AnswerRecord) {
        let said = match self.enough {
            true => Err(AnsweredBy::AskedEnough),
            false => worker.put(&shown::prompt(&question.subject), understand),
        };
        let (mut said, by) = match said {
            Ok(said) => (said, AnsweredBy::Person),
            Err(by) => (Said { allowed: false, scope: AnswerScope::Run, enough: false }, by),
        };
        self.enough |= said.enough;
        if by == AnsweredBy::NoTerminal && !std::mem::replace(&mut self.told, true) {
            let name = shown::subject_text(&question.subject);
            say(&format!("no terminal to ask on, so the answer is no to {name} and whatever else would be asked"));
        }
        if said.scope != AnswerScope::Run && !self.remember(&question.subject, said) {
            said.scope = AnswerScope::Run;
        }
        let record = AnswerRecord {
            time_ms: now_ms(),
            subject: question.subject.clone(),
            allowed: said.allowed,
            scope: said.scope,
            by,
        };
        (Answer { number: question.number, allowed: said.allowed, scope: said.scope, by }, record)
    }

    /// Writes an answer down; false: it could not be.
    fn remember(&self, subject: &Subject, said: Said) -> bool {
        let entry = Remembered {
            subject: subject.clone(),
            allowed: said.allowed,
            project: (said.scope == AnswerScope::Workspace).then(|| self.project.clone()),
            time_ms: now_ms(),
        };
        match self.memory.add(entry) {
            Ok(()) => true,
            Err(error) => {
                say(&format!("warning: the answer holds for this run only: {}", plain(&chain(&error))));
                false
            }
        }
    }
}

fn understand(line: &str) -> Option<Said> {
    let said = |allowed, scope| Some(Said { allowed, scope, enough: false });
    match line.trim() {
        "y" | "yes" => said(true, AnswerScope::Run),
        "yw" => said(true, AnswerScope::Workspace),
        "yu" => said(true, AnswerScope::User),
        "n" | "no" => said(false, AnswerScope::Run),
        "nw" => said(false, AnswerScope::Workspace),
        "nu" => said(false, AnswerScope::User),
        "q" => Some(Said { allowed: false, scope: AnswerScope::Run, enough: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_answers_are_taken() {
        assert_eq!(understand(" yw "), Some(Said { allowed: true, scope: AnswerScope::Workspace, enough: false }));
        assert!(understand("q").is_some_and(|said| said.enough && !said.allowed));
        for none in ["", "Y", "yy", "ye", "yes please", "1"] {
            assert_eq!(understand(none), None, "{none}");
        }
    }
}
