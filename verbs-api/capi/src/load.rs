//! What happens when the loader has loaded the library, before the program's `main`.
//!
//! Only the checker wants to be there so early, so only with it anything happens.

/// The loader calls what this section holds.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        roxe_check::on_load();
    }
    on_load
};
