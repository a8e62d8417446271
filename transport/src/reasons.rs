//! Enums of drop reasons: each variant has a counter name, and its documentation is the text for
//! users.

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

            /// Returns the name of the counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the meaning of the reason, for users.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+),)+
                }
            }
        }
    };
}

pub(crate) use reasons;
