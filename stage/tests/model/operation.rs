//! Operations and how to make up sequences of them.

use proptest::prelude::*;

/// Names from the root.
pub type Names = Vec<String>;

#[derive(Clone, Debug)]
pub enum Operation {
    Create(Names, u32),
    Write(Names, u64, Vec<u8>),
    Append(Names, Vec<u8>),
    Rewrite(Names, Vec<u8>),
    Truncate(Names, u64),
    Mkdir(Names, u32),
    Rmdir(Names),
    Unlink(Names),
    RemoveAll(Names),
    /// 0, 1 = no replacing, 2 = exchange.
    Rename(Names, Names, u32),
    Symlink(Names, String),
    Fifo(Names),
    Link(Names, Names),
    Chmod(Names, u32),
    Chown(Names, u32, u32),
    /// Seconds, long ago.
    SetMtime(Names, i64),
    SetXattr(Names, String, Vec<u8>, u32),
    RemoveXattr(Names, String),
    /// Open and keep; for writing too.
    Hold(Names, bool),
    HeldRead(usize),
    HeldWrite(usize, u64, Vec<u8>),
    HeldTruncate(usize, u64),
    Release(usize),
    /// Forget everything that was looked up.
    Forget,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "f", "e"]),
        2 => prop::sample::select(vec!["h1", "h2", "l", "deep", "sparse"]),
        1 => prop::sample::select(vec!["z", "y", "pipe", "x\u{f6}\n"]),
    ]
    .prop_map(str::to_owned)
}

fn names() -> impl Strategy<Value = Names> {
    prop::collection::vec(name(), 1..4)
}

/// Mostly paths that are there at the start.
fn likely() -> impl Strategy<Value = Names> {
    let there = ["a", "a/b", "a/b/deep", "a/f", "a/h1", "h2", "f", "l", "e", "sparse", "a/b/e", "pipe", "z", "z/b"];
    let there = prop::sample::select(there.to_vec()).prop_map(|p| p.split('/').map(str::to_owned).collect());
    prop_oneof![2 => there, 1 => names()]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn attribute() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["user.one", "user.two"]).prop_map(str::to_owned)
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let mode = || prop::sample::select(vec![0o644, 0o600, 0o755, 0o4755, 0o2775, 0o1777, 0]);
    prop_oneof![
        3 => (likely(), mode()).prop_map(|(p, m)| Create(p, m)),
        3 => (likely(), 0_u64..10_000, bytes()).prop_map(|(p, o, b)| Write(p, o, b)),
        2 => (likely(), bytes()).prop_map(|(p, b)| Append(p, b)),
        2 => (likely(), bytes()).prop_map(|(p, b)| Rewrite(p, b)),
        2 => (likely(), 0_u64..20_000).prop_map(|(p, s)| Truncate(p, s)),
        3 => (likely(), mode()).prop_map(|(p, m)| Mkdir(p, m)),
        2 => likely().prop_map(Rmdir),
        4 => likely().prop_map(Unlink),
        2 => likely().prop_map(RemoveAll),
        8 => (likely(), likely(), prop_oneof![4 => Just(0_u32), 1 => Just(1), 2 => Just(2)])
            .prop_map(|(a, b, f)| Rename(a, b, f)),
        1 => (likely(), "[a-z]{1,20}").prop_map(|(p, t)| Symlink(p, t)),
        1 => likely().prop_map(Fifo),
        3 => (likely(), likely()).prop_map(|(a, b)| Link(a, b)),
        2 => (likely(), mode()).prop_map(|(p, m)| Chmod(p, m)),
        1 => (likely(), 0_u32..3, 0_u32..3).prop_map(|(p, u, g)| Chown(p, u, g)),
        1 => (likely(), 0_i64..1000).prop_map(|(p, t)| SetMtime(p, t)),
        2 => (likely(), attribute(), bytes(), 0_u32..3).prop_map(|(p, n, v, f)| SetXattr(p, n, v, f)),
        1 => (likely(), attribute()).prop_map(|(p, n)| RemoveXattr(p, n)),
        1 => Just(Forget),
        3 => (likely(), any::<bool>()).prop_map(|(p, w)| Hold(p, w)),
        3 => (0_usize..8).prop_map(HeldRead),
        3 => (0_usize..8, 0_u64..10_000, bytes()).prop_map(|(n, o, b)| HeldWrite(n, o, b)),
        1 => (0_usize..8, 0_u64..10_000).prop_map(|(n, s)| HeldTruncate(n, s)),
        1 => (0_usize..8).prop_map(Release),
    ]
}

pub fn long_operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 100)
}

pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..24)
}
