//! Reasons that are counted: an enum of which every variant has a counter's name, and words for
//! people, which are its documentation. Touches nothing.

/// An enum of reasons: `variant => name of its counter`, each documented.
macro_rules! reasons {
    (
        $(#[doc = $about:literal])+
        $reasons:ident: $($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $reasons {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $reasons {
            /// All reasons; `reason as usize` is the index of `reason`.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The meaning of the reason in words.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+),)+
                }
            }
        }
    };
}

pub(crate) use reasons;
