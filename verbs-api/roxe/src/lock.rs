//! The order of this crate's locks, outermost first. All of them are outside of the provider's
//! ([`roxe_provider::lock`]).

roxe_provider::ranks! { pub(crate), 8_000.. ;
    /// `device`: the contexts that the ids of connections share; held while one is opened.
    SharedContexts,
    /// `cm::id`: naming an id.
    IdNames,
}
