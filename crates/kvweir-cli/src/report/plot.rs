//! One plot of lines as SVG. Titles and legends are HTML around it, so only axis texts depend on font metrics.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Small enough for axis texts to be readable on a phone, where it is drawn 340 pixels wide.
const SIZE: (u32, u32) = (480, 280);
const GREY: RGBColor = RGBColor(90, 90, 90);

/// Colours of lines, in their order.
pub(super) const COLOURS: [(u8, u8, u8); 6] = [
    (31, 87, 160),
    (200, 82, 20),
    (40, 130, 80),
    (130, 70, 150),
    (90, 90, 90),
    (170, 130, 0),
];
/// That of a limit.
pub(super) const LIMIT: (u8, u8, u8) = (190, 30, 45);

/// How values map to height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero.
    Linear,
    /// By powers of ten; values of zero are left out.
    Log,
}

/// A line.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// Its name in the legend.
    pub(super) name: String,
    /// Its colour.
    pub(super) colour: (u8, u8, u8),
    /// A limit is drawn dashed.
    pub(super) limit: bool,
    /// Points from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over a common axis.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    /// Title.
    pub(super) title: &'static str,
    /// Label of the horizontal axis.
    pub(super) x: &'static str,
    /// Label of the vertical axis.
    pub(super) y: &'static str,
    /// Vertical scale.
    pub(super) scale: Scale,
    /// The lines.
    pub(super) series: Vec<Series>,
}

impl Plot {
    fn height(&self, y: f64) -> Option<f64> {
        let y = match self.scale {
            Scale::Linear => y,
            Scale::Log => y.log10(),
        };
        y.is_finite().then_some(y)
    }

    fn points(&self, s: &Series) -> Vec<(f64, f64)> {
        s.points
            .iter()
            .filter(|(x, _)| x.is_finite())
            .filter_map(|&(x, y)| Some((x, self.height(y)?)))
            .collect()
    }

    /// The plot as an `<svg>` element.
    pub(super) fn to_svg(&self) -> Result<String> {
        let lines: Vec<Vec<(f64, f64)>> = self.series.iter().map(|s| self.points(s)).collect();
        let all = || lines.iter().flatten();
        let x_max = all().map(|p| p.0).fold(0.0, f64::max);
        let top = all().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        let bottom = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let (low, high) = match self.scale {
            Scale::Linear => (0.0, if top > 0.0 { top * 1.08 } else { 1.0 }),
            Scale::Log if top.is_finite() => (bottom.floor(), top.ceil().max(bottom.floor() + 1.0)),
            Scale::Log => (0.0, 1.0),
        };
        let mut svg = String::new();
        self.draw(&mut svg, &lines, if x_max > 0.0 { x_max } else { 1.0 }, low..high)
            .map_err(|e| anyhow!("plot {:?}: {e}", self.title))?;
        // The backend may open with an XML declaration, which has no place inside HTML.
        let start = svg.find("<svg").unwrap_or(0);
        Ok(svg.split_off(start))
    }

    fn draw(
        &self,
        svg: &mut String,
        lines: &[Vec<(f64, f64)>],
        x_max: f64,
        y: std::ops::Range<f64>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(20)
            .x_label_area_size(50)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..x_max, y.clone())?;
        let label = |v: &f64| match self.scale {
            Scale::Linear => short(*v),
            Scale::Log => short(10_f64.powf(*v)),
        };
        let y_labels = match self.scale {
            Scale::Linear => 5,
            Scale::Log => (y.end - y.start) as usize + 1,
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .axis_style(GREY)
            .x_desc(self.x)
            .y_desc(self.y)
            .axis_desc_style(("sans-serif", 17, &GREY))
            .label_style(("sans-serif", 16, &GREY))
            .x_label_formatter(&|v| short(*v))
            .y_label_formatter(&label)
            .x_labels(6)
            .y_labels(y_labels)
            .draw()?;
        for (series, points) in self.series.iter().zip(lines) {
            let (r, g, b) = series.colour;
            let style = RGBColor(r, g, b).stroke_width(2);
            if series.limit {
                chart.draw_series(DashedLineSeries::new(points.iter().copied(), 8, 5, style))?;
            } else {
                chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
            }
        }
        area.present()?;
        Ok(())
    }
}

/// A number in few characters.
fn short(v: f64) -> String {
    let (v, unit) = match v.abs() {
        a if a >= 1e9 => (v / 1e9, "G"),
        a if a >= 1e6 => (v / 1e6, "M"),
        a if a >= 1e4 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    let digits = if v.abs() >= 100.0 || v.fract() == 0.0 {
        0
    } else if v.abs() >= 1.0 {
        1
    } else {
        3
    };
    let text = format!("{v:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers() {
        for (v, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.5, "1.5"),
            (250.0, "250"),
            (12_000.0, "12k"),
            (3.2e6, "3.2M"),
        ] {
            assert_eq!(short(v), text);
        }
    }

    #[test]
    fn odd_data_is_drawn_or_left_out() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 5.0];
        for scale in [Scale::Linear, Scale::Log] {
            for n in 0..=odd.len() {
                let points = odd.iter().take(n).map(|&y| (1.0, y)).collect();
                let series = vec![Series {
                    name: String::new(),
                    colour: (0, 0, 0),
                    limit: n % 2 == 0,
                    points,
                }];
                let svg = Plot {
                    title: "t",
                    x: "x",
                    y: "y",
                    scale,
                    series,
                }
                .to_svg()
                .unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            }
        }
    }
}
