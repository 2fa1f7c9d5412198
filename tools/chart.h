/* The means to draw charts in SVG and HTML: a colour for each role, text, and parts of bars. Charts
 * are legible on light and on dark ground, name no font and load nothing. */
#ifndef TOOLS_CHART_H
#define TOOLS_CHART_H

#include <stdint.h>
#include <stdio.h>

#include "zero/role.h"

/* Text of the line's or of names: <, >, & and quotes are escaped. */
void chart_text(const char *text, FILE *out);

/* Colour `index` of CHART_COLOURS, or a role's, "#rrggbb": they differ in lightness too. */
#define CHART_COLOURS 11
const char *chart_colour(uint32_t index);
const char *chart_role_colour(zero_role role);

/* A part of a bar. Its title follows, which a viewer shows under the pointer, and chart_part_end.
 */
void chart_part(double x, double y, double width, double height, const char *colour, FILE *out);
void chart_part_end(FILE *out);

#endif
