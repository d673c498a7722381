//! The host's side: what is there to be read, written, reached and killed, and what became of it.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What must not be read.
pub const TOKEN: &str = "TOKEN-7c1f0e";

/// What an attempt says that has no other effect.
pub const WORKED: &str = "IT-WORKED-51b2";

const VICTIM: &str = "untouched\n";

/// One user's things on the host.
pub struct Host {
    dir: tempfile::TempDir,
    host_tmp: PathBuf,
    uid: u32,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    path_socket: UnixListener,
    abstract_socket: UnixListener,
    abstract_name: String,
    memory: Child,
    victim: Child,
    mark: String,
}

impl Host {
    pub fn new(uid: u32) -> Self {
        let dir = tempfile::Builder::new().prefix("pvisor-escape-").tempdir().unwrap();
        let top = dir.path();
        fs::set_permissions(top, fs::Permissions::from_mode(0o755)).unwrap();
        for made in ["project/deep", "outside/dir", "home/.ssh", "home/.aws", "runs"] {
            fs::create_dir_all(top.join(made)).unwrap();
        }
        for (file, text) in [
            ("project/file", VICTIM),
            ("project/deep/key.pem", TOKEN),
            ("outside/secret", TOKEN),
            ("outside/victim", VICTIM),
            ("home/.ssh/id_ed25519", TOKEN),
            ("home/.aws/credentials", TOKEN),
            ("home/.bash_history", TOKEN),
            ("home/.bashrc", VICTIM),
        ] {
            fs::write(top.join(file), text).unwrap();
        }
        let abstract_name = format!("pvisor-escape-{}", top.file_name().unwrap().display());
        let path_socket = UnixListener::bind(top.join("outside/socket")).unwrap();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let abstract_socket = UnixListener::bind_addr(&address).unwrap();
        let chown = Command::new("chown").arg("-R").arg(format!("{uid}:{uid}")).arg(top).status().unwrap();
        assert!(chown.success());
        // A program that would be root's.
        fs::copy("/usr/bin/id", top.join("outside/suid")).unwrap();
        fs::set_permissions(top.join("outside/suid"), fs::Permissions::from_mode(0o4755)).unwrap();
        let host_tmp = PathBuf::from(format!("/tmp/{abstract_name}"));
        fs::write(&host_tmp, TOKEN).unwrap();
        std::os::unix::fs::chown(&host_tmp, Some(uid), Some(uid)).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp6 = TcpListener::bind(("::1", tcp.local_addr().unwrap().port())).ok();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for listener in [Some(&tcp), tcp6.as_ref()].into_iter().flatten() {
            listener.set_nonblocking(true).unwrap();
        }
        udp.set_nonblocking(true).unwrap();
        path_socket.set_nonblocking(true).unwrap();
        abstract_socket.set_nonblocking(true).unwrap();
        let mark = format!("mark-{abstract_name}");
        let (memory, victim) = (memory_and_queue(uid, &mark), sleeper(uid));
        Self { dir, host_tmp, uid, tcp, tcp6, udp, path_socket, abstract_socket, abstract_name, memory, victim, mark }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The whole program of an attempt.
    pub fn program(&self, python: &str) -> String {
        let text = |path: &Path| format!("{:?}", path.display().to_string());
        format!(
            "import ctypes,fcntl,os,socket,stat,subprocess,sys,termios,time\n\
             OUT,PROJECT,HOME_DIR,HOST_TMP,SYSTEM={},{},{},{},{}\n\
             PORT,UDP,PID,SHM={},{},{},{}\n\
             ABSTRACT,QUEUE,MARK={:?},{:?},{:?}\n\
             L=ctypes.CDLL(None,use_errno=True)\n\
             def sc(*a):\n  r=L.syscall(*[ctypes.c_long(x) if isinstance(x,int) else x for x in a])\n  \
             if r==-1: raise OSError(ctypes.get_errno(),os.strerror(ctypes.get_errno()))\n  return r\n\
             def worked(): print({WORKED:?},flush=True)\n{python}\n",
            text(&self.path("outside")),
            text(&self.path("project")),
            text(&self.path("home")),
            text(&self.host_tmp),
            text(&self.system()),
            self.tcp.local_addr().unwrap().port(),
            self.udp.local_addr().unwrap().port(),
            self.victim.id(),
            self.key(),
            self.abstract_name,
            format!("/{}", self.mark),
            self.mark,
        )
    }

    fn system(&self) -> PathBuf {
        format!("/usr/local/{}", self.abstract_name).into()
    }

    fn key(&self) -> u32 {
        0x7000_0000 + self.memory.id()
    }

    /// What changed or leaked; puts it right again.
    pub fn damage(&mut self, output: &str) -> Vec<&'static str> {
        let mut damage = Vec::new();
        let mut when = |holds: bool, what| {
            if holds {
                damage.push(what);
            }
        };
        when(output.contains(TOKEN), "a secret was read");
        when(output.contains(WORKED), "it worked");
        for file in ["outside/victim", "home/.bashrc", "project/file"] {
            let path = self.path(file);
            let is = fs::read_to_string(&path).unwrap_or_default();
            let mode = fs::metadata(&path).map(|m| m.permissions().mode() & 0o777).unwrap_or_default();
            when(is != VICTIM || mode == 0o777, "a file was changed");
            if is != VICTIM || mode == 0o777 {
                fs::write(&path, VICTIM).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
                std::os::unix::fs::chown(&path, Some(self.uid), Some(self.uid)).unwrap();
            }
        }
        for path in [self.path("outside/dir/new"), self.path("project/.git"), self.system()] {
            when(path.exists(), "a file was made");
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir_all(&path);
        }
        when(accepted(|| self.tcp.accept().map(drop)), "TCP came");
        when(self.tcp6.as_ref().is_some_and(|l| accepted(|| l.accept().map(drop))), "TCP came");
        when(self.udp.recv(&mut [0; 9]).is_ok(), "UDP came");
        when(accepted(|| self.path_socket.accept().map(drop)), "a socket was reached");
        when(accepted(|| self.abstract_socket.accept().map(drop)), "a socket was reached");
        if !matches!(self.victim.try_wait(), Ok(None)) {
            when(true, "a process was killed");
            self.victim = sleeper(self.uid);
        }
        when(self.left(), "a process was left");
        // What a key was renamed or linked to by an attempt that is open.
        if self.path("home/y").exists() {
            fs::rename(self.path("home/y"), self.path("home/.ssh")).unwrap();
        }
        let _ = fs::remove_file(self.path("home/x"));
        damage
    }

    /// Whether a process of the attempt is left; it gets a moment to go.
    fn left(&self) -> bool {
        for _ in 0..100 {
            let found = fs::read_dir("/proc").unwrap().flatten().find(|entry| {
                let args = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                args.starts_with(b"sleep\x001000\x00") && String::from_utf8_lossy(&args).contains(&self.mark)
            });
            let Some(found) = found else { return false };
            if let Ok(pid) = found.file_name().to_string_lossy().parse() {
                std::thread::sleep(std::time::Duration::from_millis(20));
                LAST_LEFT.store(pid, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let pid = LAST_LEFT.load(std::sync::atomic::Ordering::Relaxed);
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        true
    }
}

static LAST_LEFT: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

impl Drop for Host {
    fn drop(&mut self) {
        for child in [&mut self.memory, &mut self.victim] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = Command::new("ipcrm").args(["-M", &format!("{:#x}", self.key())]).stderr(Stdio::null()).status();
        let _ = fs::remove_file(&self.host_tmp);
    }
}

fn accepted(accept: impl FnOnce() -> std::io::Result<()>) -> bool {
    accept().is_ok()
}

fn sleeper(uid: u32) -> Child {
    Command::new("sleep").arg("3600").uid(uid).gid(uid).spawn().unwrap()
}

/// A process that holds a shared memory segment and a message queue with the token in them.
fn memory_and_queue(uid: u32, mark: &str) -> Child {
    let code = format!(
        "import ctypes,os,sys,time
L=ctypes.CDLL(None,use_errno=True); L.shmat.restype=ctypes.c_void_p
i=L.shmget(0x70000000+os.getpid(),4096,0o1666); ctypes.memmove(L.shmat(i,None,0),b'{TOKEN}\\0',{n})
q=L.mq_open(b'/{mark}',os.O_CREAT|os.O_RDWR,0o666,None); L.mq_send(q,b'{TOKEN}',{t},0); L.mq_send(q,b'{TOKEN}',{t},0)
print('ready',flush=True)
try: time.sleep(3600)
finally: L.mq_unlink(b'/{mark}')",
        n = TOKEN.len() + 1,
        t = TOKEN.len()
    );
    let mut command = Command::new("/usr/bin/python3");
    let mut child = command.args(["-c", &code]).uid(uid).gid(uid).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    child
}
