//! The lock ranks of this crate, outermost first. All are outside the provider's
//! ([`roxe_provider::lock`]).

roxe_provider::ranks! { pub(crate), 8_000.. ;
    /// `device`: the contexts that connection ids share; held while a context is opened.
    SharedContexts,
    /// `cm::id`: the assignment of an identity to a connection id.
    IdNames,
}
