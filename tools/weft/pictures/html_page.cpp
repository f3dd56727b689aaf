// SPDX-License-Identifier: Apache-2.0
#include "html_page.hpp"

#include "svg_words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

constexpr std::string_view look =
    "body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}code,pre{font-family:'DejaVu Sans Mono',monospace}"
    "pre{background:#f5f5f5;padding:.3em .6em;overflow-x:auto;margin:.3em 0}"
    "section{border-left:6px solid #999;padding:.2em 1em;margin:1em 0}section.failed{border-color:#b3261e}"
    "section.warning{border-color:#b07b00}section.ok{border-color:#2e7d32}table{border-collapse:collapse;font-size:."
    "9em;"
    "margin:.6em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}"
    "svg{max-width:100%;height:auto}";

}  // namespace

html_page::html_page(std::string_view title)
    : text_(fmt::format("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>"
                        "<style>{1}</style></head><body>\n<h1>{0}</h1>\n",
                        svg_words(title), look)) {}

void html_page::heading(std::string_view text) { text_ += fmt::format("<h2>{}</h2>\n", svg_words(text)); }

void html_page::paragraph(std::string_view text) { text_ += fmt::format("<p>{}</p>\n", svg_words(text)); }

void html_page::table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  const auto line = [&](const std::vector<std::string>& cells, std::string_view tag) {
    text_ += "<tr>";
    for (const std::string& cell : cells) text_ += fmt::format("<{0}>{1}</{0}>", tag, svg_words(cell));
    text_ += "</tr>\n";
  };
  text_ += "<table>\n";
  line(header, "th");
  for (const auto& row : rows) line(row, "td");
  text_ += "</table>\n";
}

void html_page::picture(std::string_view svg) {
  // a file of its own begins with a line that a page must not have
  if (svg.starts_with("<?xml")) svg.remove_prefix(std::min(svg.size(), svg.find("?>") + 2));
  text_ += svg;
  text_ += "\n";
}

}  // namespace weft::tool
