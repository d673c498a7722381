//! The whole policy: defaults, precedence, disguises.

use super::*;
use proptest::prelude::*;

fn policy(default: DefaultVerdict, allow: &[&str], deny: &[&str]) -> Policy {
    let rules = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect();
    Policy { default, allow: rules(allow), deny: rules(deny), ..Policy::default() }
}

fn names(texts: &[&str]) -> Vec<Name> {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

fn allowed(policy: &Policy, address: &str, port: u16, bound: &[&str]) -> bool {
    policy.judge(address.parse().unwrap(), Some(port), &names(bound), &LocalAddresses::default()).allowed
}

/// One address of every class that is not public.
const SPECIAL: [&str; 12] = [
    "127.0.0.1",
    "::1",
    "0.0.0.0",
    "10.0.0.1",
    "192.168.1.1",
    "fd00::1",
    "169.254.1.1",
    "fe80::1",
    "169.254.169.254",
    "224.0.0.251",
    "255.255.255.255",
    "192.0.2.1",
];

#[test]
fn public_by_default_reaches_the_internet_and_nothing_near() {
    let policy = policy(DefaultVerdict::Public, &[], &[]);
    assert!(allowed(&policy, "8.8.8.8", 53, &[]) && allowed(&policy, "2606:4700::1111", 443, &[]));
    for special in SPECIAL {
        assert!(!allowed(&policy, special, 80, &[]), "{special}");
        assert!(!allowed(&policy, special, 80, &["example.com"]), "{special} by a name");
    }
}

#[test]
fn an_empty_allow_list_means_nothing() {
    let policy = policy(DefaultVerdict::AllowList, &[], &[]);
    for address in SPECIAL.iter().chain(&["8.8.8.8", "2606:4700::1111"]) {
        assert!(!allowed(&policy, address, 443, &["example.com"]), "{address}");
    }
    assert!(!policy.judge_name(&"example.com".parse().unwrap()).allowed);
    assert_eq!(Policy::default(), policy);
}

#[test]
fn deny_all_beats_every_rule() {
    let policy = policy(DefaultVerdict::DenyAll, &["*", "8.8.8.8", "localhost"], &[]);
    assert!(!allowed(&policy, "8.8.8.8", 53, &[]) && !allowed(&policy, "127.0.0.1", 1, &[]));
    assert!(!policy.judge_name(&"example.com".parse().unwrap()).allowed && !policy.opens_host());
}

#[test]
fn an_address_is_allowed_because_a_name_was() {
    let policy = policy(DefaultVerdict::AllowList, &["api.example.com:443", "*.cdn.example:80"], &[]);
    assert!(allowed(&policy, "8.8.8.8", 443, &["api.example.com"]));
    assert!(!allowed(&policy, "8.8.8.8", 80, &["api.example.com"]), "another port");
    assert!(!allowed(&policy, "8.8.8.8", 443, &[]), "no name led there");
    assert!(!allowed(&policy, "8.8.8.8", 443, &["evil.example.com"]));
    assert!(allowed(&policy, "8.8.8.8", 443, &["evil.example.com", "api.example.com"]));
    assert!(
        allowed(&policy, "8.8.8.8", 80, &["a.b.cdn.example"]) && !allowed(&policy, "8.8.8.8", 80, &["cdn.example"])
    );
    for name in ["api.example.com", "a.cdn.example"] {
        assert!(policy.judge_name(&name.parse().unwrap()).allowed, "{name}");
    }
    for name in ["example.com", "x.api.example.com", "cdn.example", "xcdn.example", "localhost", HOST_ALIAS] {
        assert!(!policy.judge_name(&name.parse().unwrap()).allowed, "{name}");
    }
}

#[test]
fn deny_wins() {
    let policy =
        policy(DefaultVerdict::Public, &["*", "8.8.8.8", "a.example"], &["8.8.8.8:53", "a.example", "9.9.0.0/16"]);
    assert!(!allowed(&policy, "8.8.8.8", 53, &[]) && allowed(&policy, "8.8.8.8", 443, &[]));
    assert!(!allowed(&policy, "::ffff:8.8.8.8", 53, &[]) && !allowed(&policy, "64:ff9b::808:808", 53, &[]));
    assert!(!allowed(&policy, "9.9.9.9", 443, &[]));
    assert!(!allowed(&policy, "1.1.1.1", 443, &["b.example", "a.example"]), "any name of the address");
    assert!(!policy.judge_name(&"A.Example.".parse().unwrap()).allowed);
    let verdict = policy.judge([8, 8, 8, 8].into(), None, &[], &LocalAddresses::default());
    assert!(verdict.allowed, "a rule about a port is not about ICMP");
}

#[test]
fn special_ranges_open_only_to_rules_that_name_them() {
    let by_number = policy(DefaultVerdict::Public, &["10.1.0.0/16", "127.0.0.1:8080", "169.254.169.254"], &[]);
    assert!(allowed(&by_number, "10.1.2.3", 1, &[]) && !allowed(&by_number, "10.2.0.1", 1, &[]));
    assert!(allowed(&by_number, "127.0.0.1", 8080, &[]) && !allowed(&by_number, "127.0.0.1", 80, &[]));
    assert!(allowed(&by_number, "169.254.169.254", 80, &[]) && !allowed(&by_number, "169.254.170.2", 80, &[]));
    assert!(by_number.opens_host());
    let by_name = policy(DefaultVerdict::AllowList, &["intra.example", "*.wild.example"], &[]);
    assert!(allowed(&by_name, "10.0.0.1", 80, &["intra.example"]));
    assert!(!allowed(&by_name, "10.0.0.1", 80, &["a.wild.example"]));
    for never in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"] {
        assert!(!allowed(&by_name, never, 80, &["intra.example"]), "{never}");
    }
    assert!(!by_name.opens_host());
}

#[test]
fn rebinding_answers_are_dropped() {
    let local: LocalAddresses = [IpAddr::from([8, 8, 4, 4])].into_iter().collect();
    let admits = |policy: &Policy, name: &str, address: &str| {
        policy.admits_answer(&name.parse().unwrap(), address.parse().unwrap(), &local)
    };
    let open = policy(DefaultVerdict::Public, &["intra.example", "10.5.0.0/16", "localhost:80"], &[]);
    assert!(admits(&open, "x.example", "1.1.1.1") && admits(&open, "intra.example", "192.168.0.9"));
    assert!(!admits(&open, "x.example", "192.168.0.9") && admits(&open, "x.example", "10.5.1.1"));
    assert!(!admits(&open, "x.example", "8.8.4.4"), "the host's own public address");
    for never in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "0.0.0.0", "127.0.0.2"] {
        assert!(!admits(&open, "intra.example", never) && !admits(&open, "x.example", never), "{never}");
    }
}

#[test]
fn unnamed_names_under_each_default() {
    let open = policy(DefaultVerdict::Public, &[], &["bad.example"]);
    assert!(open.judge_name(&"example.com".parse().unwrap()).allowed);
    assert!(!open.judge_name(&"bad.example".parse().unwrap()).allowed);
    assert!(!open.judge_name(&"localhost".parse().unwrap()).allowed);
    let port_only = policy(DefaultVerdict::Public, &[], &["bad.example:25"]);
    assert!(port_only.judge_name(&"bad.example".parse().unwrap()).allowed);
    assert!(
        !allowed(&port_only, "1.1.1.1", 25, &["bad.example"]) && allowed(&port_only, "1.1.1.1", 80, &["bad.example"])
    );
}

#[test]
fn json_form_is_stable() {
    let json =
        r#"{"default":"allow_list","allow":["example.com:443","10.0.0.0/8"],"deny":["*.bad.example"],"limit":1000}"#;
    let policy: Policy = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&policy).unwrap(), json);
    assert!(serde_json::from_str::<Policy>(r#"{"default":"public","alow":[]}"#).is_err());
    assert!(serde_json::from_str::<Policy>(r#"{"default":"public","limit":0}"#).is_err());
    let reason = serde_json::to_string(&Reason::DenyRule("a.example".parse().unwrap())).unwrap();
    assert_eq!(reason, r#"{"deny_rule":"a.example"}"#);
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|b| IpAddr::V4(b.into())),
        any::<u128>().prop_map(|b| IpAddr::V6(b.into())),
        any::<u32>().prop_map(|b| IpAddr::V6(std::net::Ipv4Addr::from(b).to_ipv6_mapped())),
        proptest::sample::select(&SPECIAL[..]).prop_map(|a| a.parse().unwrap()),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let texts = [
        "*",
        "*:443",
        "example.com",
        "*.example.com:443",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "::/0",
        "8.8.8.8",
        "127.0.0.1:80",
        "localhost",
        "169.254.0.0/16",
        "fd00::/8",
        "[::1]:80",
        "a.example.com",
    ];
    proptest::sample::select(texts.to_vec()).prop_map(|t| t.parse().unwrap())
}

fn any_names() -> impl Strategy<Value = Vec<Name>> {
    let texts = ["example.com", "a.example.com", "evil.org"];
    proptest::collection::vec(proptest::sample::select(texts.to_vec()).prop_map(|t| t.parse().unwrap()), 0..3)
}

proptest! {
    #[test]
    fn laws(
        address in any_address(),
        port in proptest::sample::select(vec![None, Some(80), Some(443)]),
        bound in any_names(),
        allow in proptest::collection::vec(any_rule(), 0..4),
        deny in proptest::collection::vec(any_rule(), 0..3),
        default in proptest::sample::select(vec![DefaultVerdict::Public, DefaultVerdict::AllowList]),
    ) {
        let local = LocalAddresses::default();
        let policy = Policy { default, allow, deny, ..Policy::default() };
        let verdict = policy.judge(address, port, &bound, &local);
        // The same place in another spelling gets the same verdict.
        prop_assert_eq!(&verdict, &policy.judge(canonical(address), port, &bound, &local));
        // One more deny rule never allows more, one more allow rule never allows less.
        for rule in ["*", "8.8.8.8", "example.com"] {
            let mut stricter = policy.clone();
            stricter.deny.push(rule.parse().unwrap());
            prop_assert!(verdict.allowed || !stricter.judge(address, port, &bound, &local).allowed);
            let mut wider = policy.clone();
            wider.allow.push(rule.parse().unwrap());
            prop_assert!(!verdict.allowed || wider.judge(address, port, &bound, &local).allowed);
        }
        // Without a rule that names it by number, nothing special but a private address of a full name is reached.
        let class = classify(address, &local).0;
        if verdict.allowed && class != AddressClass::Public {
            prop_assert!(
                policy.allow.iter().any(|r| r.reaches(address, &local))
                    || (class == AddressClass::Private && bound.iter().any(|n| policy.allow.iter().any(|r| r.host() == Some(n))))
            );
        }
        // The reason agrees with the verdict.
        let says_allowed = matches!(verdict.reason, Reason::AllowRule(_) | Reason::DefaultPublic);
        prop_assert_eq!(says_allowed, verdict.allowed);
    }
}
