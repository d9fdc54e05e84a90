//! [`declare!`]: from one declaration follow the type, its binary form, its JSON form and its table in `schemas/`.

/// Declares structures and enums of the log. Fields are written in the order of the declaration.
///
/// - `pub struct Name { … }` and `pub enum Name { … }` define the type. The doc comment of a field or variant becomes
///   its meaning in `schemas/`. A variant gives its tag and its name in JSON: `Variant = tag, "name" { … },`.
/// - `field: Type as "form"` names the JSON form of a type that serde writes otherwise, see `json/values.rs`.
/// - `describe struct` and `describe enum` do the same for a type that another module defines, which derives its JSON
///   form there. The match over the variants is exhaustive, so that a new variant cannot be forgotten.
/// - `check path;` names a function that refuses decoded values.
macro_rules! declare {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$lt:lifetime>)? {
            $( $(#[doc = $doc:literal])+ pub $field:ident: $type:ty $(as $form:literal)?, )+
        }
        $(check $check:path;)?
    ) => {
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name $(<$lt>)? { $( $(#[doc = $doc])+ $(#[serde(with = $form)])? pub $field: $type, )+ }

        declare! {
            describe struct $name $(<$lt>)? { $( $(#[doc = $doc])+ $field: $type, )+ }
            $(check $check;)?
        }
    };

    (
        describe struct $name:ident $(<$lt:lifetime>)? {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
        }
        $(check $check:path;)?
    ) => {
        impl<'wire, $($lt)?> $crate::event::codec::Wire<'wire> for $name<$($lt)?> where $('wire: $lt)? {
            const LEAST: usize = 0 $(
                + <$type as $crate::event::codec::Wire<'wire>>::LEAST
            )+;

            fn encode(&self, sink: &mut $crate::event::codec::BodyWriter) {
                $( $crate::event::codec::Wire::encode(&self.$field, sink); )+
            }

            fn decode(
                source: &mut $crate::event::codec::BodyReader<'wire>,
            ) -> Result<Self, $crate::event::DecodeError> {
                let value = $name { $(
                    $field: <$type as $crate::event::codec::Wire>::decode(source)
                        .map_err(|error| error.within(stringify!($field)))?,
                )+ };
                $( $check(&value)?; )?
                Ok(value)
            }
        }

        #[cfg(test)]
        impl<$($lt)?> $crate::event::schema::Described for $name<$($lt)?> {
            fn shape() -> $crate::event::schema::Shape {
                $crate::event::schema::Shape::structure::<Self>(stringify!($name))
            }
        }

        #[cfg(test)]
        impl<$($lt)?> $crate::event::schema::Structure for $name<$($lt)?> {
            fn rows() -> Vec<$crate::event::schema::TableRow> {
                use $crate::event::schema::{Described, TableRow};
                vec![ $( TableRow {
                    field: stringify!($field),
                    shape: <$type>::shape(),
                    meaning: concat!($($doc),+).trim(),
                }, )+ ]
            }
        }
    };

    (
        $(#[$meta:meta])*
        pub enum $name:ident $(<$lt:lifetime>)? { $(
            $(#[doc = $about:literal])+
            $variant:ident = $tag:literal, $text:literal $({
                $( $(#[doc = $doc:literal])+ $field:ident: $type:ty $(as $form:literal)?, )+
            })?,
        )+ }
    ) => {
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub enum $name $(<$lt>)? { $(
            $(#[doc = $about])+
            #[serde(rename = $text)]
            $variant $({ $( $(#[doc = $doc])+ $(#[serde(with = $form)])? $field: $type, )+ })?,
        )+ }

        declare! {
            describe enum $name $(<$lt>)? { $(
                $(#[doc = $about])+
                $variant = $tag, $text $({ $( $(#[doc = $doc])+ $field: $type, )+ })?,
            )+ }
        }
    };

    (
        describe enum $name:ident $(<$lt:lifetime>)? { $(
            $(#[doc = $about:literal])+
            $variant:ident = $tag:literal, $text:literal $({
                $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
            })?,
        )+ }
    ) => {
        impl<'wire, $($lt)?> $crate::event::codec::Wire<'wire> for $name<$($lt)?> where $('wire: $lt)? {
            const LEAST: usize = 4 + $crate::event::codec::least(&[
                $( 0 $($( + <$type as $crate::event::codec::Wire<'wire>>::LEAST )+)?, )+
            ]);

            fn encode(&self, sink: &mut $crate::event::codec::BodyWriter) {
                match self { $(
                    $name::$variant { $($($field,)+)? } => {
                        sink.put::<u32>($tag);
                        $($( $crate::event::codec::Wire::encode($field, sink); )+)?
                    }
                )+ }
            }

            fn decode(
                source: &mut $crate::event::codec::BodyReader<'wire>,
            ) -> Result<Self, $crate::event::DecodeError> {
                Ok(match source.take::<u32>()? {
                    $( $tag => $name::$variant { $($(
                        $field: $crate::event::codec::Wire::decode(source)
                            .map_err(|error| error.within(concat!($text, ".", stringify!($field))))?,
                    )+)? }, )+
                    other => return Err($crate::event::DecodeProblem::Tag(other).into()),
                })
            }
        }

        #[cfg(test)]
        impl<$($lt)?> $crate::event::schema::Described for $name<$($lt)?> {
            fn shape() -> $crate::event::schema::Shape {
                $crate::event::schema::Shape::choice(stringify!($name))
            }
        }

        #[cfg(test)]
        impl<$($lt)?> $crate::event::schema::Choice for $name<$($lt)?> {
            fn variants() -> Vec<$crate::event::schema::Variant> {
                use $crate::event::schema::Variant;
                vec![ $( Variant {
                    tag: $tag,
                    text: $text,
                    meaning: concat!($($about),+).trim(),
                    rows: vec![ $($( $crate::event::schema::TableRow {
                        field: stringify!($field),
                        shape: <$type as $crate::event::schema::Described>::shape(),
                        meaning: concat!($($doc),+).trim(),
                    }, )+)? ],
                }, )+ ]
            }
        }
    };
}
pub(super) use declare;
