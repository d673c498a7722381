//! Attempts to get out: each a few lines of Python, run inside for real.
//!
//! Variables that they have: `OUT` (a directory of the host with `secret`, `victim`, `dir`), `PROJECT`, `HOME_DIR`,
//! `HOST_TMP`, `SYSTEM` (a path in `/usr`), `PORT` and `UDP` (listeners on the host's loopback), `ABSTRACT` (an abstract socket of the host), `PID`
//! (a process of the host and of the same user), `SHM` (key of a memory segment of the host), `QUEUE` (a message queue
//! of the host); `sc(number, …)` makes a system call and raises where it fails. An attempt that has no effect on the
//! host by which it could be judged says `worked()`.

/// What a run is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// A stage, and nothing else.
    Stage,
    /// A stage and the filesystem sandbox.
    Sandbox,
    /// `--safe`.
    Safe,
}

/// Everything, in the order of the table.
pub const PRESETS: [Preset; 3] = [Preset::Stage, Preset::Sandbox, Preset::Safe];

/// One attempt.
pub struct Attempt {
    pub name: &'static str,
    /// Where it must fail; elsewhere it is open, and the table says so.
    pub closed: &'static [Preset],
    pub python: &'static str,
    /// Further options of `run`.
    pub options: &'static [&'static str],
    /// How the shell that starts pvisor is set up: redirections.
    pub around: &'static str,
    /// Redirections inside, of the interpreter.
    pub inside: &'static str,
}

use Preset::{Safe, Sandbox, Stage};

const ALWAYS: &[Preset] = &[Stage, Sandbox, Safe];
const BOXED: &[Preset] = &[Sandbox, Safe];
const ONLY_SAFE: &[Preset] = &[Safe];

const fn plain(name: &'static str, closed: &'static [Preset], python: &'static str) -> Attempt {
    Attempt { name, closed, python, options: &[], around: "", inside: "" }
}

pub const ALL: &[Attempt] = &[
    // Files of the host.
    plain("read an absolute path", BOXED, "print(open(OUT+'/secret').read())"),
    plain("read with ..", BOXED, "print(open(PROJECT+'/../outside/secret').read())"),
    plain("read through a symlink in the project", BOXED, "os.symlink(OUT,'l'); print(open('l/secret').read())"),
    plain("read through /proc/self/root", BOXED, "print(open('/proc/self/root'+OUT+'/secret').read())"),
    plain("read through /proc/1/root", BOXED, "print(open('/proc/1/root'+OUT+'/secret').read())"),
    plain("read through the cwd of process 1", BOXED, "print(open('/proc/1/cwd/'+OUT+'/secret').read())"),
    plain("read through a host process's root", BOXED, "print(open(f'/proc/{PID}/root'+OUT+'/secret').read())"),
    plain(
        "read after chroot tricks",
        BOXED,
        "
os.mkdir('j'); d=os.open('.',os.O_RDONLY); os.chroot('j'); os.fchdir(d)
for _ in range(50): os.chdir('..')
os.chroot('.'); print(open(OUT+'/secret').read())",
    ),
    plain("read the host's /tmp", BOXED, "print(open(HOST_TMP).read())"),
    plain(
        "read a file by its handle",
        ALWAYS,
        "
h=(ctypes.c_uint*64)(); h[0]=128; m=ctypes.c_int()
sc(303,-100,b'.',h,ctypes.byref(m),0); worked()",
    ),
    plain("write an absolute path", BOXED, "open(OUT+'/victim','w').write('x')"),
    plain("write through a symlink", BOXED, "os.symlink(OUT+'/victim','v'); open('v','w').write('x')"),
    plain("write through a symlinked parent", BOXED, "os.symlink(OUT,'d'); open('d/dir/new','w').write('x')"),
    plain("write through a hard link", ALWAYS, "os.link(OUT+'/victim','h'); open('h','w').write('x')"),
    plain("rename onto a file of the host", ALWAYS, "os.rename('file',OUT+'/victim')"),
    plain("make a file beside the project", BOXED, "open(PROJECT+'/../outside/dir/new','w').write('x')"),
    plain("delete a file of the host", BOXED, "os.unlink(OUT+'/victim')"),
    plain("change the mode of a host file", BOXED, "os.chmod(OUT+'/victim',0o777)"),
    plain("write the system", ALWAYS_UNLESS_ROOT, "open(SYSTEM,'w').write('x')"),
    plain("write the home directory", BOXED, "open(HOME_DIR+'/.bashrc','a').write('x')"),
    plain("write the project past the stage", ALWAYS, "open('file','w').write('x'); os.unlink('file')"),
    plain(
        "plant a git hook for the host",
        ALWAYS,
        "
os.makedirs('.git/hooks',exist_ok=True); open('.git/hooks/post-checkout','w').write('x')",
    ),
    // Secrets.
    plain("read a private key", BOXED, "print(open(HOME_DIR+'/.ssh/id_ed25519').read())"),
    plain("list the keys", BOXED, "print(os.listdir(HOME_DIR+'/.ssh')); worked()"),
    plain("read cloud credentials", BOXED, "print(open(HOME_DIR+'/.aws/credentials').read())"),
    plain("read the shell's history", BOXED, "print(open(HOME_DIR+'/.bash_history').read())"),
    plain(
        "read a secret through a hard link",
        BOXED,
        "
os.link(HOME_DIR+'/.ssh/id_ed25519',HOME_DIR+'/x'); print(open(HOME_DIR+'/x').read())",
    ),
    plain(
        "read a secret after renaming its parent",
        BOXED,
        "
os.rename(HOME_DIR+'/.ssh',HOME_DIR+'/y'); print(open(HOME_DIR+'/y/id_ed25519').read())",
    ),
    plain("read the passwords' hashes", BOXED, "open('/etc/shadow').read(); worked()"),
    plain("read variables of the caller", ONLY_SAFE, "print(dict(os.environ))"),
    Attempt {
        options: &["--access=*.pem:deny"],
        ..plain("read a denied file of the project", BOXED, "print(open('deep/key.pem').read())")
    },
    // Descriptors.
    Attempt {
        around: "9<$OUT/secret",
        ..plain("read an inherited descriptor", ALWAYS, "print(os.read(9,100).decode())")
    },
    Attempt {
        around: "7<$OUT",
        ..plain("go through an inherited directory", ALWAYS, "print(open(os.open('secret',0,dir_fd=7)).read())")
    },
    Attempt {
        around: "<$OUT/victim",
        ..plain(
            "open standard input again, to write",
            BOXED,
            "
os.write(os.open('/proc/self/fd/0',os.O_RDWR),b'x')",
        )
    },
    Attempt {
        around: "<$OUT",
        inside: "3<&0 </dev/null",
        ..plain(
            "go through a directory on standard input",
            BOXED,
            "
print(open(os.open('secret',0,dir_fd=3)).read())",
        )
    },
    // Other processes.
    plain("kill a host process", ALWAYS, "os.kill(PID,9)"),
    plain("stop a host process with a trace", ALWAYS, "sc(101,16,PID,0,0); worked()"),
    plain("write a host process's memory", ALWAYS, "open(f'/proc/{PID}/mem','r+b'); worked()"),
    plain(
        "write with process_vm_writev",
        ALWAYS,
        "
b=ctypes.create_string_buffer(8); v=(ctypes.c_ulong*2)(ctypes.addressof(b),8)
sc(311,PID,v,1,v,1,0); worked()",
    ),
    plain("read a host process's variables", ALWAYS, "open(f'/proc/{PID}/environ').read(); worked()"),
    plain(
        "enter a host process's namespaces",
        ALWAYS,
        "
f=os.open(f'/proc/{PID}/ns/mnt',os.O_RDONLY); sc(308,f,0); worked()",
    ),
    plain("take a descriptor from a host process", ALWAYS, "p=sc(434,PID,0); sc(438,p,0,0); worked()"),
    plain("overwrite the program of process 1", ALWAYS, "open('/proc/1/exe','r+b'); worked()"),
    plain(
        "leave a daemon behind",
        ALWAYS,
        "
if os.fork()==0:
  os.setsid()
  if os.fork()==0: os.execvp('sleep',['sleep','1000',MARK])
  os._exit(0)
time.sleep(0.2)",
    ),
    plain(
        "shared memory of System V",
        BOXED,
        "
i=sc(29,SHM,4096,0); L.shmat.restype=ctypes.c_void_p; print(ctypes.string_at(L.shmat(i,None,0o10000)).decode())",
    ),
    plain(
        "a message queue of the host",
        BOXED,
        "
q=L.mq_open(QUEUE.encode(),os.O_RDONLY|os.O_NONBLOCK); b=ctypes.create_string_buffer(9000)
n=L.mq_receive(q,b,9000,None); print(b.raw[:n].decode() if n>0 else '')",
    ),
    // The network.
    plain(
        "an abstract socket of the host",
        BOXED,
        "
s=socket.socket(socket.AF_UNIX); s.connect('\\0'+ABSTRACT); s.send(b'x')",
    ),
    plain(
        "a socket of the host at a path",
        BOXED,
        "
s=socket.socket(socket.AF_UNIX); s.connect(OUT+'/socket'); s.send(b'x')",
    ),
    plain("TCP to the host's loopback", ONLY_SAFE, "socket.create_connection(('127.0.0.1',PORT),2).send(b'x')"),
    plain(
        "TCP to the host's loopback, IPv6",
        ONLY_SAFE,
        "
socket.create_connection(('::1',PORT),2).send(b'x')",
    ),
    plain(
        "UDP to the host's loopback",
        ONLY_SAFE,
        "
socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'x',('127.0.0.1',UDP))",
    ),
    plain(
        "multipath TCP to the host's loopback",
        ONLY_SAFE,
        "
s=socket.socket(socket.AF_INET,socket.SOCK_STREAM,262); s.settimeout(2); s.connect(('127.0.0.1',PORT)); s.send(b'x')",
    ),
    plain(
        "a route to the internet",
        ONLY_SAFE,
        "
socket.socket(socket.AF_INET,socket.SOCK_DGRAM).connect(('192.0.2.1',443)); worked()",
    ),
    plain(
        "a route to the metadata service",
        ONLY_SAFE,
        "
socket.socket(socket.AF_INET,socket.SOCK_DGRAM).connect(('169.254.169.254',80)); worked()",
    ),
    plain("a raw socket", ALWAYS, "socket.socket(socket.AF_INET,socket.SOCK_RAW,1); worked()"),
    plain("a packet socket", ALWAYS, "socket.socket(socket.AF_PACKET,socket.SOCK_RAW,0); worked()"),
    plain("a socket to the hypervisor", ALWAYS, "socket.socket(40,socket.SOCK_STREAM); worked()"),
    plain("a socket into the kernel's ciphers", ALWAYS, "socket.socket(38,socket.SOCK_SEQPACKET); worked()"),
    // Rights.
    plain(
        "unmount the stage and write",
        ALWAYS,
        "
os.chdir('/'); sc(166,PROJECT.encode(),2); open(PROJECT+'/file','w').write('x')",
    ),
    plain("mount over the project", ALWAYS, "sc(165,b'x',PROJECT.encode(),b'tmpfs',0,0); worked()"),
    plain("mount with the newer calls", ALWAYS, "sc(430,b'tmpfs',0); worked()"),
    plain("a user namespace", ALWAYS, "sc(272,0x10000000); worked()"),
    plain(
        "a user namespace with clone",
        ALWAYS,
        "
p=sc(56,0x10000000|17,0,0,0,0)
if p==0: os._exit(0)
worked()",
    ),
    plain(
        "a user namespace with clone3",
        ALWAYS,
        "
a=(ctypes.c_ulong*8)(0x10000000,0,0,0,17,0,0,0); p=sc(435,a,64)
if p==0: os._exit(0)
worked()",
    ),
    plain("a mount namespace", ALWAYS, "sc(272,0x20000); worked()"),
    plain(
        "a set-user-id program",
        ALWAYS,
        "
r=subprocess.run([OUT+'/suid','-u'],capture_output=True,text=True).stdout.strip()
os.getuid()!=0 and r=='0' and worked()",
    ),
    plain("become another user", ALWAYS, "os.setuid(12345); os.getuid()==12345 and worked()"),
    plain("a higher priority", ALWAYS, "os.setpriority(os.PRIO_PROCESS,0,-5); worked()"),
    plain(
        "raise a limit",
        ALWAYS,
        "
import resource; r=resource.RLIMIT_NOFILE; h=resource.getrlimit(r)[1]
resource.setrlimit(r,(h+1,h+1)); worked()",
    ),
    // Devices and the kernel.
    plain(
        "read a disk",
        BOXED,
        "
import glob
d=[p for p in glob.glob('/dev/*') if stat.S_ISBLK(os.stat(p).st_mode)]
os.open(d[0],os.O_RDONLY); worked()",
    ),
    plain("make a device node", ALWAYS, "os.mknod('disk',0o600|stat.S_IFBLK,os.makedev(254,0)); worked()"),
    plain("mount a filesystem of one's own", BOXED, "os.open('/dev/fuse',os.O_RDWR); worked()"),
    plain("write to the kernel's log", BOXED, "os.open('/dev/kmsg',os.O_WRONLY); worked()"),
    plain("change where core dumps go", ALWAYS, "open('/proc/sys/kernel/core_pattern','r+'); worked()"),
    plain("the kernel's emergency keys", ALWAYS, "open('/proc/sysrq-trigger','w'); worked()"),
    plain("change a setting in /sys", BOXED, "open('/sys/kernel/uevent_helper','w'); worked()"),
    plain(
        "a release agent of a control group",
        BOXED,
        "
import glob
g=glob.glob('/sys/fs/cgroup/*/release_agent'); open(g[0],'w'); worked()",
    ),
    plain("the keyrings", ALWAYS, "sc(248,b'user',b'pvisor-escape',b'x',1,-2); worked()"),
    plain("the session keyring of the parent", ALWAYS, "sc(250,18); worked()"),
    plain("io_uring", ALWAYS, "p=(ctypes.c_char*256)(); sc(425,4,p); worked()"),
    plain("a program in the kernel", ALWAYS, "a=(ctypes.c_char*128)(); sc(321,0,a,128); worked()"),
    plain("page faults in user space", ALWAYS, "sc(323,1); worked()"),
    plain("performance events", ALWAYS, "a=(ctypes.c_char*128)(); a[4]=128; sc(298,a,0,-1,-1,0); worked()"),
    plain("the kernel's messages", ALWAYS, "b=ctypes.create_string_buffer(99); sc(103,3,b,99); worked()"),
    plain("the other ABI", ALWAYS, "sc(0x40000000+39); worked()"),
    plain(
        "type into the terminal",
        ALWAYS,
        "
m,s=os.openpty()
if os.fork()==0:
  os.setsid(); fcntl.ioctl(s,termios.TIOCSCTTY,0)
  try: fcntl.ioctl(s,termios.TIOCSTI,b'x'); worked()
  except OSError as e: e.errno not in (1,5) and worked()
  sys.stdout.flush(); os._exit(0)
os.wait()",
    ),
    // Using up the machine.
    Attempt {
        options: &["--pids", "64"],
        ..plain(
            "a fork bomb",
            ALWAYS,
            "
n=0
for _ in range(200):
  if os.fork()==0: time.sleep(20); os._exit(0)
  n+=1
n==200 and worked()",
        )
    },
    Attempt { options: &["--memory", "128M"], ..plain("a memory bomb", ALWAYS, "b=bytearray(400<<20); worked()") },
    Attempt {
        options: &["--max-file-size", "128M"],
        ..plain(
            "a disk filler",
            ALWAYS,
            "
import signal; signal.signal(signal.SIGXFSZ,signal.SIG_IGN)
f=open('big','wb'); f.truncate(300<<20); worked()",
        )
    },
    Attempt {
        options: &["--max-open-files", "64"],
        ..plain("all descriptors", ALWAYS, "k=[os.open('/dev/null',0) for _ in range(200)]; worked()")
    },
];

/// Root may write the system where nothing but the project is asked to be kept; that is in the table too.
const ALWAYS_UNLESS_ROOT: &[Preset] = BOXED;
