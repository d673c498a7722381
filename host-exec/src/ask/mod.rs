//! Questions to the person: who asks puts one on the desk and goes on; the relay takes them up one after the other.

mod answers;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pvisor_spec::{Answer, Question, Subject};
use rustix::event::{EventfdFlags, eventfd};

use crate::log::{AccessEvent, EventLog};
pub(crate) use answers::{AnswerPipe, Heard};

/// Questions of one run; what would be asked after that is denied.
const MOST: u32 = 1000;
/// Who waits for one answer. There are as many as the command has threads that ask, and a bound.
const MOST_WAITING: usize = 4096;

/// Is told whether the command may.
pub(crate) type Tell = Box<dyn FnOnce(bool) + Send>;

/// Where questions wait for their turn. Can be used from every thread.
pub(crate) struct Desk {
    state: Mutex<State>,
    /// Readable when there is a new question.
    bell: OwnedFd,
    log: Arc<EventLog>,
}

#[derive(Default)]
struct State {
    open: VecDeque<Open>,
    asked: u32,
    closed: bool,
}

struct Open {
    question: Question,
    waiting: Vec<Tell>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    /// An empty desk.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(log: Arc<EventLog>) -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), bell, log })
    }

    /// Asks; `tell` is called with the answer, once, perhaps before this returns. Who asks what somebody else asks
    /// already gets the same answer.
    pub(crate) fn ask(&self, subject: Subject, tell: Tell) {
        let mut state = self.state();
        if let Some(open) = state.open.iter_mut().find(|open| open.question.subject == subject)
            && open.waiting.len() < MOST_WAITING
        {
            return open.waiting.push(tell);
        }
        if state.closed || state.asked >= MOST {
            drop(state);
            return tell(false);
        }
        state.asked += 1;
        let question = Question { number: state.asked, subject };
        state.open.push_back(Open { question, waiting: vec![tell] });
        drop(state);
        // It can't be full: nobody rings it so often.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The question whose turn it is.
    pub(crate) fn first(&self) -> Option<Question> {
        self.state().open.front().map(|open| open.question.clone())
    }

    /// Notes that the person is asked now.
    pub(crate) fn note_asked(&self, question: &Question) {
        self.log.write(AccessEvent::Asked { subject: question.subject.clone() });
    }

    /// Takes in the answer to the question whose turn it is; one to another question is none.
    pub(crate) fn settle(&self, answer: &Answer) {
        let mut state = self.state();
        let Some(open) = state.open.pop_front_if(|open| open.question.number == answer.number) else { return };
        drop(state);
        self.log.write(AccessEvent::Answered {
            subject: open.question.subject,
            allowed: answer.allowed,
            scope: answer.scope,
            by: answer.by,
        });
        for tell in open.waiting {
            tell(answer.allowed);
        }
    }

    /// Denies whatever is asked and will be.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let open = std::mem::take(&mut state.open);
        drop(state);
        for tell in open.into_iter().flat_map(|open| open.waiting) {
            tell(false);
        }
    }

    /// Makes the bell silent.
    pub(crate) fn hear(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever is told is told outside of the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use pvisor_spec::{AnswerScope, AnsweredBy};

    use super::*;

    fn desk() -> (tempfile::TempDir, Desk) {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::create(dir.path()).unwrap();
        (dir, Desk::new(log).unwrap())
    }

    fn ask(desk: &Desk, host: &str) -> Receiver<bool> {
        let (tell, told) = channel();
        desk.ask(Subject::Host(host.to_owned()), Box::new(move |allowed| tell.send(allowed).unwrap()));
        told
    }

    fn answer(number: u32, allowed: bool) -> Answer {
        Answer { number, allowed, scope: AnswerScope::Run, by: AnsweredBy::Person }
    }

    #[test]
    fn one_question_for_all_who_ask_the_same_and_one_at_a_time() {
        let (dir, desk) = desk();
        let all = [ask(&desk, "a"), ask(&desk, "b"), ask(&desk, "a")];
        assert_eq!(desk.first().unwrap(), Question { number: 1, subject: Subject::Host("a".into()) });
        desk.settle(&answer(2, true));
        assert!(all[1].try_recv().is_err(), "an answer out of turn is none");
        desk.settle(&answer(1, true));
        assert_eq!((all[0].recv(), all[2].recv()), (Ok(true), Ok(true)));
        desk.settle(&answer(2, false));
        assert_eq!((all[1].recv(), desk.first()), (Ok(false), None));
        let log = std::fs::read_to_string(dir.path().join(crate::FLOW_LOG)).unwrap();
        let answered = r#""event":"answered","subject":{"host":"a"},"allowed":true,"scope":"run","by":"person""#;
        assert!(log.contains(answered) && log.lines().count() == 2, "{log}");
    }

    #[test]
    fn a_closed_desk_denies_what_waits_and_what_comes() {
        let (_dir, desk) = desk();
        let before = ask(&desk, "a");
        desk.close();
        assert_eq!((before.recv(), ask(&desk, "b").recv(), desk.first()), (Ok(false), Ok(false), None));
    }

    #[test]
    fn questions_of_a_run_are_limited() {
        let (_dir, desk) = desk();
        for number in 1..=MOST {
            let told = ask(&desk, &format!("h{number}"));
            desk.settle(&answer(number, true));
            assert_eq!(told.recv(), Ok(true));
        }
        assert_eq!(ask(&desk, "one more").recv(), Ok(false));
    }
}
