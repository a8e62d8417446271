//! What a session may ask for, at most. Touches nothing.

/// Bytes of one line, its end included.
pub const LINE: usize = 4 << 20;
/// Bytes of the line of a controller that has not shown the token yet.
pub const FIRST_LINE: usize = 1 << 10;
/// Characters of a token that the user chose, at least.
pub const TOKEN: usize = 16;
/// Seconds in which a controller shows the token.
pub const FIRST_LINE_SECONDS: u64 = 10;
/// Connections of controllers that have not shown the token yet; another one ends the oldest.
pub const CONNECTIONS: usize = 8;
/// Seconds from an answer to the end of the next request, after which the session ends.
pub const IDLE_SECONDS: u64 = 600;
/// Seconds in which a controller takes an answer.
pub const ANSWER_SECONDS: u64 = 30;
/// Milliseconds that one request may wait for something.
pub const WAIT_MS: u64 = 60_000;
/// Objects of all kinds together.
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
