//! The pipeline's contract with its caller; fixtures/scenarios and tests/sim hold the rest.
