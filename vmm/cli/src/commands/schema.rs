//! `pvisor schema`.

use pvisor_spec::{BUNDLE_SCHEMA, Bundle, ExitCode};
use pvisor_stage::{REVIEW_SCHEMA, ReviewDocument};

use crate::args::{SchemaArg, SchemaArgs};
use crate::report::{Failure, answer_json};

pub(super) fn schema(args: &SchemaArgs) -> Result<u8, Failure> {
    let (mut schema, name) = match args.file {
        SchemaArg::Bundle => (schemars::schema_for!(Bundle), BUNDLE_SCHEMA),
        // What is written, not what would be read.
        SchemaArg::Review => {
            let settings = schemars::generate::SchemaSettings::default().for_serialize();
            (settings.into_generator().into_root_schema_for::<ReviewDocument<'_>>(), REVIEW_SCHEMA)
        }
    };
    schema.insert("$id".to_owned(), name.into());
    answer_json(&schema)?;
    Ok(ExitCode::OK)
}
