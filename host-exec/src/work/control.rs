//! The line to a run that goes on: a socket in its directory, which only its owner can enter.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use pvisor_spec::{CONTROL_LIMIT, CONTROL_SOCKET, ControlAnswer, ControlRequest};

use crate::failure::failure;

/// How long who connects may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket with somebody who answers, one request at a time.
pub(super) struct Control {
    socket: PathBuf,
    /// Its end is the answerer's.
    stop: io::PipeWriter,
    thread: JoinHandle<()>,
}

impl Control {
    /// Begins to answer.
    ///
    /// # Errors
    /// The socket can't be made, or no thread.
    pub(super) fn listen(
        run_dir: &Path,
        answer: impl Fn(&ControlRequest) -> ControlAnswer + Send + 'static,
    ) -> io::Result<Self> {
        let socket = run_dir.join(CONTROL_SOCKET);
        let dir = std::fs::File::open(run_dir)?;
        // The directory's own path may be longer than the address of a socket can be.
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{CONTROL_SOCKET}", dir.as_raw_fd()))?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            while let Some(stream) = next(&listener, &stopped) {
                if let Err(error) = serve(&stream, &answer) {
                    tracing::debug!(%error, "a request to the run was not answered");
                }
            }
        })?;
        Ok(Self { socket, stop, thread })
    }

    /// Answers what was begun, and nothing any more.
    pub(super) fn stop(self) {
        let _ = std::fs::remove_file(&self.socket);
        drop(self.stop);
        // A panic has ended the process.
        let _ = self.thread.join();
    }
}

/// Waits for somebody; `None`: it is over.
fn next(listener: &UnixListener, stopped: &io::PipeReader) -> Option<UnixStream> {
    loop {
        let mut fds =
            [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, PollTimeout::NONE) {
            Err(nix::Error::EINTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        if fds[1].revents().is_some_and(|r| !r.is_empty()) {
            return None;
        }
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Out of descriptors, for instance: nobody can be answered now, perhaps later.
            Err(_) => std::thread::sleep(PATIENCE / 50),
        }
    }
}

fn serve(stream: &UnixStream, answer: &impl Fn(&ControlRequest) -> ControlAnswer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asker = rustix::net::sockopt::socket_peercred(stream)?;
    if !asker.uid.is_root() && asker.uid != rustix::process::geteuid() {
        return Err(io::Error::other("somebody else asks"));
    }
    let mut line = Vec::new();
    BufReader::new(stream.take(CONTROL_LIMIT as u64)).read_until(b'\n', &mut line)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(request) => answer(&request),
        Err(e) => ControlAnswer::Failed(failure(
            "protocol",
            format!("the run does not understand what is asked: {e}"),
            "it was started by another version of pvisor",
        )),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    let mut out = stream;
    out.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pvisor_spec::Saved;

    fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_are_answered_one_after_the_other_until_it_is_over() {
        let temp = tempfile::tempdir().unwrap();
        // Deeper than an address can be long.
        let dir = temp.path().join("x".repeat(120));
        std::fs::create_dir(&dir).unwrap();
        let control = Control::listen(&dir, |request| {
            let ControlRequest::Save { name, pause_limit_ms } = request;
            ControlAnswer::Saved(Saved { name: name.clone().unwrap_or_default(), pause_ms: *pause_limit_ms })
        })
        .unwrap();
        let link = temp.path().join("short");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        let socket = link.join(CONTROL_SOCKET);
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // One that says nothing is in nobody's way for long.
        drop(UnixStream::connect(&socket).unwrap());
        for _ in 0..3 {
            let answer = ask(&socket, b"{\"save\":{\"name\":\"a\",\"pause_limit_ms\":5}}\n");
            assert_eq!(answer, "{\"saved\":{\"name\":\"a\",\"pause_ms\":5}}\n");
        }
        for noise in [&b"\n"[..], b"{\"save\":{}}\n", b"{\"burn\":{}}\n", &[b'x'; CONTROL_LIMIT]] {
            assert!(ask(&socket, noise).contains("protocol"));
        }
        control.stop();
        assert!(!socket.exists());
        assert!(UnixStream::connect(&socket).is_err());
    }
}
