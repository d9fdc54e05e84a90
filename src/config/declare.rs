//! `settings!`: turns the list of settings into the checked structs and the static list.

macro_rules! optional {
    () => {
        None
    };
    ($($value:tt)+) => {
        Some($($value)+)
    };
}

macro_rules! settings {
    ($(
        $(#[doc = $section_help:literal])+
        [$section:literal] $group:ident {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $type:ty
                    $(= $default:literal)?
                    $(, example $example:literal)?
                    $(, range $low:literal to $high:literal)?
                    $(, unit $unit:literal)?
                    $(, reference $reference:literal)?
                ;
            )*
            $(nested $(#[doc = $sub_help:literal])+ $sub:ident: $sub_type:ident;)*
        }
    )*) => {
        $(
            $(#[doc = $section_help])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $group {
                $(
                    $(#[doc = $help])+
                    $(#[doc = concat!("\nUnit: ", $unit, ".")])?
                    pub $name: $type,
                )*
                $($(#[doc = $sub_help])+ pub $sub: $sub_type,)*
            }

            impl $group {
                /// Reads every setting of the section before the result is checked, so that all errors are reported.
                pub(super) fn take(checker: &mut Checker<'_>) -> Option<Self> {
                    $(let $name = checker.take::<$type>(
                        concat!($section, ".", stringify!($name)),
                        optional!($(($low, $high))?),
                    );)*
                    $(let $sub = $sub_type::take(checker);)*
                    Some(Self { $($name: $name?,)* $($sub: $sub?,)* })
                }

                /// Checks the value of every setting of the section by itself.
                pub(super) fn check_values(&self, checker: &mut Checker<'_>) {
                    $(checker.check_value(
                        concat!($section, ".", stringify!($name)),
                        self.$name.check(optional!($(($low, $high))?)),
                    );)*
                    $(self.$sub.check_values(checker);)*
                }
            }
        )*

        /// All settings, in the order of the sample.
        pub static SECTIONS: &[Section] = &[$(Section {
            key: $section,
            help: &[$($section_help),+],
            settings: &[$(Setting {
                key: concat!($section, ".", stringify!($name)),
                kind: <$type as SettingType>::KIND,
                default: optional!($(stringify!($default))?),
                example: optional!($(stringify!($example))?),
                range: optional!($(($low, $high))?),
                unit: optional!($($unit)?),
                reference: optional!($($reference)?),
                help: &[$($help),+],
            }),*],
        }),*];
    };
}

pub(super) use optional;
pub(super) use settings;
