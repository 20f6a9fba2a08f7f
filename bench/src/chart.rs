//! Charts as SVG: bars of comparisons, lines of what grows.

use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, SegmentValue, ValueFormatter};
use plotters::prelude::*;

use crate::measurement::Failure;
use crate::report::figure;

const WIDTH: u32 = 900;

const FONT: &str = "sans-serif";

/// Blue, orange, green, red: to be told apart also by those who see fewer colours.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115), RGBColor(213, 94, 0)];

/// A chart of bars that lie side by side, on a logarithmic axis.
pub struct Bars {
    /// What it shows.
    pub title: &'static str,
    /// What the axis tells.
    pub axis: &'static str,
    /// The names of the bars that each line has.
    pub sides: &'static [&'static str],
    /// From the top down: a name, and for each side value, least, greatest.
    pub lines: Vec<(String, Vec<[f64; 3]>)>,
    /// Where a line is drawn from top to bottom.
    pub mark: Option<f64>,
}

/// A chart of values over something that grows.
pub struct Lines {
    /// What it shows.
    pub title: String,
    /// What grows.
    pub x: String,
    /// What is measured.
    pub y: String,
    /// Whether the horizontal axis is logarithmic.
    pub logarithmic: bool,
    /// Names and points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

impl Bars {
    /// Writes it to `path`; nothing if there is no bar.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let count = self.lines.len() as i32;
        let values = || self.lines.iter().flat_map(|(_, sides)| sides.iter().flatten().copied()).chain(self.mark);
        let (least, greatest) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        if count == 0 || least <= 0.0 {
            return Ok(());
        }
        let root =
            SVGBackend::new(path, (WIDTH, 110 + 14 * (1 + self.sides.len() as u32) * count as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, (FONT, 18))
            .margin(10)
            .margin_right(30)
            .x_label_area_size(40)
            .y_label_area_size(210)
            .build_cartesian_2d((least / 1.5..greatest * 1.5).log_scale(), (0..count - 1).into_segmented())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_desc(self.axis)
            .x_label_formatter(&|value| figure(*value))
            .y_labels(count as usize)
            .y_label_formatter(&|place| match place {
                SegmentValue::CenterOf(place) => {
                    self.lines.get((count - 1 - place) as usize).map_or(String::new(), |(name, _)| name.clone())
                }
                _ => String::new(),
            })
            .label_style((FONT, 13))
            .draw()?;
        // Bars begin at the left edge: a logarithmic axis has no zero.
        let left = least / 1.5;
        let plane = chart.plotting_area();
        for (side, name) in self.sides.iter().enumerate() {
            let colour = COLOURS[side];
            let bars = self.lines.iter().enumerate().filter_map(|(line, (_, sides))| Some((line, sides.get(side)?)));
            let thick = 12;
            let rectangles: Vec<_> = bars
                .map(|(line, [value, least, greatest])| {
                    let centre = plane.map_coordinate(&(left, SegmentValue::CenterOf(count - 1 - line as i32))).1;
                    let top = centre - (self.sides.len() as i32 * thick) / 2 + side as i32 * thick;
                    let across = |value: f64| plane.map_coordinate(&(value, SegmentValue::CenterOf(0))).0;
                    (top, across(left), across(*value), across(*least), across(*greatest))
                })
                .collect();
            for (top, left, value, least, greatest) in rectangles {
                root.draw(&Rectangle::new([(left, top), (value, top + thick - 2)], colour.filled()))?;
                let middle = top + thick / 2 - 1;
                root.draw(&PathElement::new([(least, middle), (greatest, middle)], BLACK.stroke_width(1)))?;
            }
            let label = (230 + 160 * side as i32, 34);
            if self.sides.len() > 1 {
                root.draw(&Rectangle::new([(label.0 - 14, label.1), (label.0 - 4, label.1 + 10)], colour.filled()))?;
                root.draw(&Text::new(*name, label, (FONT, 13)))?;
            }
        }
        if let Some(mark) = self.mark {
            let (top, bottom) = (plane.get_pixel_range().1.start, plane.get_pixel_range().1.end);
            let across = plane.map_coordinate(&(mark, SegmentValue::CenterOf(0))).0;
            root.draw(&PathElement::new([(across, top), (across, bottom)], RED.stroke_width(2)))?;
        }
        root.present()?;
        Ok(())
    }
}

impl Lines {
    /// Writes it to `path`; nothing if there is no point.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let points = || self.series.iter().flat_map(|(_, points)| points.iter());
        let (from, to) = points().fold((f64::MAX, 0.0_f64), |(from, to), (x, _)| (from.min(*x), to.max(*x)));
        let highest = points().fold(0.0_f64, |highest, (_, y)| highest.max(*y));
        if from >= to || highest <= 0.0 {
            return Ok(());
        }
        if self.logarithmic {
            self.draw(path, (from..to).log_scale(), highest)
        } else {
            self.draw(path, from..to, highest)
        }
    }

    fn draw<X>(&self, path: &Path, range: X, highest: f64) -> Result<(), Failure>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let root = SVGBackend::new(path, (WIDTH, 420)).into_drawing_area();
        root.fill(&WHITE)?;
        // From zero, so that flat looks flat.
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, (FONT, 18))
            .margin(10)
            .margin_right(30)
            .x_label_area_size(45)
            .y_label_area_size(70)
            .build_cartesian_2d(range, 0.0..highest * 1.15)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| figure(*value))
            .label_style((FONT, 13))
            .draw()?;
        for ((name, points), colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let colour = *colour;
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .label_font((FONT, 13))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
