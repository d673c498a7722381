//! The guest kernel.

mod image;

pub use image::{ImageError, KernelImage, KernelLayout};
