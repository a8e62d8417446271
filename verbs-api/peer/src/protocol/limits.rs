//! Limits of a session.

/// Bytes of one line, including its `\n`.
pub const LINE: usize = 4 << 20;
/// Bytes of the line with the token.
pub const FIRST_LINE: usize = 1 << 10;
/// Minimum number of characters of a token that the user chose.
pub const TOKEN: usize = 16;
/// Seconds within which a controller must send the token.
pub const FIRST_LINE_SECONDS: u64 = 10;
/// Open connections that have not sent the token; one more closes the oldest.
pub const CONNECTIONS: usize = 8;
/// Seconds without a request after which the session ends.
pub const IDLE_SECONDS: u64 = 600;
/// Seconds within which a controller must read an answer.
pub const ANSWER_SECONDS: u64 = 30;
/// Milliseconds that one request may wait.
pub const WAIT_MS: u64 = 60_000;
/// Objects of all kinds.
pub const OBJECTS: usize = 8192;
/// Bytes of registered memory in total.
pub const MEMORY: usize = 256 << 20;
/// Bytes that one request reads, writes or sends inline.
pub const TRANSFER: usize = 1 << 20;
/// Segments of one work request.
pub const SEGMENTS: usize = 64;
/// Completions or events of one answer.
pub const RESULTS: usize = 4096;
/// Entries of a queue.
pub const QUEUE: u32 = 65536;
