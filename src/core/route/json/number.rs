//! Prints floating-point numbers like Java (`Double.toString` since JDK 19).
//!
//! Plain from 10^-3 to below 10^7, otherwise in computerised scientific notation.

pub(in crate::route) fn write_double(out: &mut Vec<u8>, number: f64) {
    // Java picks the nearest of two digits where one would suffice: `4.9E-324`, not `5.0E-324`.
    let two = format!("{number:.1e}");
    let shortest = format!("{number:e}");
    let has_one_digit = !shortest.contains('.') && two.parse() == Ok(number);
    write(out, if has_one_digit { &two } else { &shortest }, number.is_finite());
}

pub(in crate::route) fn write_float(out: &mut Vec<u8>, number: f32) {
    let two = format!("{number:.1e}");
    let shortest = format!("{number:e}");
    let has_one_digit = !shortest.contains('.') && two.parse() == Ok(number);
    write(out, if has_one_digit { &two } else { &shortest }, number.is_finite());
}

/// `scientific` is Rust's shortest output: `-1.25e-7`.
fn write(out: &mut Vec<u8>, scientific: &str, is_finite: bool) {
    if !is_finite {
        let name = match scientific {
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            _ => "NaN",
        };
        return out.extend(name.as_bytes());
    }
    let (sign, unsigned) = match scientific.strip_prefix('-') {
        Some(unsigned) => ("-", unsigned),
        None => ("", scientific),
    };
    let (mantissa, exponent) = unsigned.split_once('e').unwrap_or((unsigned, "0"));
    let Ok(exponent) = exponent.parse::<i32>() else {
        unreachable!("Rust prints a double's exponent as a whole number");
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = if fraction == "0" { "" } else { fraction };
    let digits = format!("{whole}{fraction}");
    let digits = digits.as_str();
    let or_zero = |digits: &str| if digits.is_empty() { "0".to_owned() } else { digits.to_owned() };
    let text = match usize::try_from(exponent) {
        Ok(places) if places < 7 => {
            let cut = (places + 1).min(digits.len());
            let (before, after) = digits.split_at_checked(cut).unwrap_or((digits, ""));
            let zeros = "0".repeat((places + 1).saturating_sub(digits.len()));
            format!("{before}{zeros}.{}", or_zero(after))
        }
        Err(_) if exponent >= -3 => {
            let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or(0));
            format!("0.{zeros}{digits}")
        }
        _ => format!("{whole}.{}E{exponent}", or_zero(fraction)),
    };
    out.extend(sign.as_bytes());
    out.extend(text.as_bytes());
}
