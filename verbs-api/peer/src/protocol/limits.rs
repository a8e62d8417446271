//! Limits of a session.

/// Bytes of one line, its end included.
pub const LINE: usize = 4 << 20;
/// Bytes of the line with the token.
pub const FIRST_LINE: usize = 1 << 10;
/// Least number of characters of a token that the user chose.
pub const TOKEN: usize = 16;
/// Seconds until a controller must have shown the token.
pub const FIRST_LINE_SECONDS: u64 = 10;
/// Connections without a token; one more closes the oldest.
pub const CONNECTIONS: usize = 8;
/// Seconds without a request after which the session ends.
pub const IDLE_SECONDS: u64 = 600;
/// Seconds until a controller must have read an answer.
pub const ANSWER_SECONDS: u64 = 30;
/// Milliseconds that one request may wait.
pub const WAIT_MS: u64 = 60_000;
/// Objects of all kinds.
pub const OBJECTS: usize = 8192;
/// Bytes of registered memory in all.
pub const MEMORY: usize = 256 << 20;
/// Bytes that one request reads, writes or sends inline.
pub const TRANSFER: usize = 1 << 20;
/// Segments of one work request.
pub const SEGMENTS: usize = 64;
/// Completions or events of one answer.
pub const RESULTS: usize = 4096;
/// Entries of a queue.
pub const QUEUE: u32 = 65536;
