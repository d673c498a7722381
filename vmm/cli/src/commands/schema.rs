//! `pvisor schema`.

use pvisor_spec::{BUNDLE_SCHEMA, Bundle, ExitCode};

use crate::args::{SchemaArg, SchemaArgs};
use crate::report::{Failure, answer_json};

pub(super) fn schema(args: &SchemaArgs) -> Result<u8, Failure> {
    let mut schema = match args.file {
        SchemaArg::Bundle => schemars::schema_for!(Bundle),
    };
    schema.insert("$id".to_owned(), BUNDLE_SCHEMA.into());
    answer_json(&schema)?;
    Ok(ExitCode::OK)
}
