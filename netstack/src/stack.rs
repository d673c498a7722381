//! Starts and stops a network.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Waker};

use crate::engine::{Engine, Kind, Next, Port, poll_timeout};
use crate::event::{EventSink, NetEvent};
use crate::link::{Link, link};
use crate::{Binding, Rule, StackConfig, Upstream};

/// Why a network was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The link's addresses or MTU can't work.
    #[error("network link: {0}")]
    Link(&'static str),
    /// No name server is given.
    #[error("the list of name servers is empty")]
    NoUpstream,
    /// A published port can't be listened at.
    #[error("publish {address}: {source}")]
    Publish {
        /// Where to listen.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system is out of descriptors, threads or random numbers.
    #[error("network engine: {0}")]
    System(#[source] io::Error),
}

/// A network for one sandbox.
pub struct NetStack;

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    wakes: AtomicU64,
    /// Whoever wants to know the bindings.
    asked: Mutex<Vec<mpsc::Sender<Vec<Binding>>>>,
    /// Answers that the engine has not taken in yet.
    answers: Mutex<Vec<(Rule, bool)>>,
}

/// A running network. Dropping it stops the network.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    published: Vec<SocketAddr>,
}

impl NetStack {
    /// Starts a network whose frames come and go through a [`Link`].
    ///
    /// Call [`crate::raise_descriptor_limit`] before: every flow takes a descriptor.
    ///
    /// # Errors
    /// See [`StartError`]; published ports are bound before this returns.
    pub fn start(config: StackConfig, sink: EventSink) -> Result<(Link, Handle), StartError> {
        let mut link_end = None;
        let handle = spawn(config, sink, |poll, _| {
            // mio allows one waker for each poll, so the link's is the thread's only one: the handle shares it.
            let waker = Arc::new(Waker::new(poll.registry(), Kind::Waker.token(0))?);
            let (link, port) = link(Arc::clone(&waker))?;
            link_end = Some(link);
            Ok((Port::Queue(port), waker))
        })?;
        match link_end {
            Some(link) => Ok((link, handle)),
            None => Err(StartError::System(io::ErrorKind::Other.into())),
        }
    }

    /// Starts a network whose frames come and go through a TAP device.
    ///
    /// # Errors
    /// See [`StartError`].
    #[cfg(target_os = "linux")]
    pub fn start_on_tap(config: StackConfig, tap: crate::Tap, sink: EventSink) -> Result<Handle, StartError> {
        spawn(config, sink, |poll, max_frame| {
            let waker = Arc::new(Waker::new(poll.registry(), Kind::Waker.token(0))?);
            let port = crate::engine::TapPort::new(tap, max_frame, poll.registry(), Kind::Tap.token(0))?;
            Ok((Port::Tap(port), waker))
        })
    }
}

fn spawn(
    config: StackConfig,
    sink: EventSink,
    port: impl FnOnce(&Poll, usize) -> io::Result<(Port, Arc<Waker>)>,
) -> Result<Handle, StartError> {
    config.link.check().map_err(StartError::Link)?;
    if matches!(&config.upstream, Upstream::Servers(servers) if servers.is_empty()) {
        return Err(StartError::NoUpstream);
    }
    let system = StartError::System;
    let poll = Poll::new().map_err(system)?;
    let registry = poll.registry().try_clone().map_err(system)?;
    let seed = getrandom::u64().map_err(|error| system(error.into()))?;
    let (port, waker) = port(&poll, config.link.max_frame()).map_err(system)?;
    let publish = config.publish.clone();
    let mut engine = Engine::new(config, port, registry, Arc::clone(&sink), seed, Instant::now());
    let mut published = Vec::new();
    for entry in publish {
        let fault = |source| StartError::Publish { address: entry.host, source };
        let listener = mio::net::TcpListener::bind(entry.host).map_err(fault)?;
        published.push(listener.local_addr().map_err(fault)?);
        engine.publish(listener, entry.guest_port).map_err(fault)?;
    }
    let shared = Arc::new(Shared::default());
    let of_thread = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name("netstack".into())
        .spawn(move || {
            // A fault in a parser must not open a way out, nor take the whole worker down: the network closes.
            let result = catch_unwind(AssertUnwindSafe(|| serve(engine, poll, &of_thread)));
            let error = match result {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "internal fault".to_owned(),
            };
            tracing::error!(error, "the network broke");
            sink(NetEvent::Failed { error });
        })
        .map_err(system)?;
    Ok(Handle { shared, waker, thread: Some(thread), published })
}

fn serve(mut engine: Engine, mut poll: Poll, shared: &Shared) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut wait = Some(Duration::ZERO);
    loop {
        match poll.poll(&mut events, wait) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        shared.wakes.fetch_add(1, Ordering::Relaxed);
        for event in &events {
            engine.on_event(event);
        }
        let now = Instant::now();
        for asker in take(&shared.asked) {
            // Whoever gave up waiting needs no answer.
            let _ = asker.send(engine.bindings(now));
        }
        for (rule, allowed) in take(&shared.answers) {
            engine.answer(rule, allowed, now);
        }
        if shared.stop.load(Ordering::Acquire) {
            engine.stop(now);
            return Ok(());
        }
        wait = match engine.turn(now) {
            Next::Now => Some(Duration::ZERO),
            Next::Sleep(None) => None,
            Next::Sleep(Some(at)) => Some(poll_timeout(at.saturating_duration_since(now))),
            Next::Over => {
                engine.stop(now);
                return Ok(());
            }
        };
    }
}

fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    // A list has no state that a panic could leave half done.
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Handle {
    /// Which names led the sandbox to which addresses, to go into a checkpoint and from there into
    /// [`StackConfig::bindings`]. Empty once the network has ended.
    pub fn bindings(&self) -> Vec<Binding> {
        let (tell, told) = mpsc::channel();
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).push(tell);
        let _ = self.waker.wake();
        loop {
            match told.recv_timeout(Duration::from_millis(100)) {
                Ok(bindings) => return bindings,
                Err(mpsc::RecvTimeoutError::Timeout) if self.is_running() => {}
                Err(_) => return Vec::new(),
            }
        }
    }

    /// Answers the question of a [`NetEvent::Asked`]: whether the rule holds from now on. Whatever waited for it goes on
    /// or is denied.
    pub fn answer(&self, rule: Rule, allowed: bool) {
        self.answerer().answer(rule, allowed);
    }

    /// What answers questions, for another thread: it does not keep the network alive.
    pub fn answerer(&self) -> Answerer {
        Answerer { shared: Arc::clone(&self.shared), waker: Arc::clone(&self.waker) }
    }

    /// Where published ports are really listened at, in the order in which they were asked for.
    pub fn published(&self) -> &[SocketAddr] {
        &self.published
    }

    /// How often the engine has woken up since its start: an idle network does not.
    pub fn wakes(&self) -> u64 {
        self.shared.wakes.load(Ordering::Relaxed)
    }

    /// Whether the network still works; `false` also after it broke.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends all flows and waits until their last events are reported.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was caught and reported inside.
            let _ = thread.join();
        }
    }
}

/// Answers questions of a network; see [`Handle::answer`].
#[derive(Clone, Debug)]
pub struct Answerer {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
}

impl Answerer {
    /// See [`Handle::answer`].
    pub fn answer(&self, rule: Rule, allowed: bool) {
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).push((rule, allowed));
        // A network that has ended hears no answers.
        let _ = self.waker.wake();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shut_down();
    }
}
