//! Showing a person what a sealed stage changes.

mod quote;

pub(crate) use quote::quoted;
