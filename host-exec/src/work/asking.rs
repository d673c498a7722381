//! The relay's part in a question: the command is held, the supervisor asks, the command goes on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::unistd::Pid;
use pvisor_spec::Question;

use crate::ask::{AnswerPipe, Desk, Heard};
use crate::launch::namespaces::Namespaces;
use crate::launch::terminal;

/// How far a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Idle,
    /// The command is being held for it.
    Holding,
    /// The supervisor has it.
    Put,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    None,
    /// The command is to be held.
    Hold,
    /// The supervisor is to ask.
    Put(Question),
    /// The command is to go on.
    Release,
}

/// Questions of a command that runs.
pub(super) struct Asking {
    desk: Arc<Desk>,
    answers: Option<AnswerPipe>,
    stage: Stage,
    /// Who had the terminal's foreground when the command was held, where that was somebody else than us.
    foreground: Option<Pid>,
}

impl Drop for Asking {
    /// The command is over: nobody is asked any more.
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl Asking {
    /// Where nobody answers, or the command can't be held while somebody is asked, everything is denied.
    pub(super) fn new(desk: Arc<Desk>, answers: Option<OwnedFd>, namespaces: Option<Namespaces>) -> Self {
        let holds = namespaces.is_some_and(|n| n.pid);
        let answers = answers.filter(|_| holds).and_then(|fd| AnswerPipe::new(fd).ok());
        if answers.is_none() {
            desk.close();
        }
        Self { desk, answers, stage: Stage::Idle, foreground: None }
    }

    /// Whether the command is held, or is about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// What to wait for.
    pub(super) fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.desk.as_fd()), self.answers.as_ref().map(AsFd::as_fd)]
    }

    /// There may be a question.
    pub(super) fn hear_bell(&mut self) -> Step {
        self.desk.hear();
        match (self.stage, self.desk.first()) {
            (Stage::Idle, Some(_)) => {
                self.stage = Stage::Holding;
                Step::Hold
            }
            _ => Step::None,
        }
    }

    /// The command is held. `home`: the group that is to have the terminal while the person is asked.
    pub(super) fn held(&mut self, home: Option<Pid>) -> Step {
        if self.stage != Stage::Holding {
            return Step::None;
        }
        if let Some(home) = home
            && let Some(other) = terminal::foreground().filter(|group| *group != home && is_inside(*group))
        {
            self.foreground = Some(other);
            terminal::give_to(home);
        }
        self.next()
    }

    /// There may be an answer.
    pub(super) fn hear_answers(&mut self) -> Step {
        let Some(answers) = &mut self.answers else { return Step::None };
        match answers.next() {
            Heard::Nothing => return Step::None,
            Heard::Answer(answer) => self.desk.settle(&answer),
            Heard::Over => {
                self.answers = None;
                self.desk.close();
            }
        }
        if self.is_busy() { self.next() } else { Step::None }
    }

    /// The next question while the command is held, else its going on.
    fn next(&mut self) -> Step {
        if let Some(question) = self.desk.first() {
            self.stage = Stage::Put;
            self.desk.note_asked(&question);
            return Step::Put(question);
        }
        self.stage = Stage::Idle;
        if let Some(group) = self.foreground.take() {
            terminal::give_to(group);
        }
        Step::Release
    }
}

/// Whether a process group is the command's: its leader lives in a process namespace of its own.
fn is_inside(group: Pid) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/pid"));
    match (namespace(&group.to_string()), namespace("self")) {
        (Ok(theirs), Ok(own)) => theirs != own,
        _ => false,
    }
}
