/* Owns what all charts are drawn with. */
#include "chart.h"

void chart_text(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

const char *chart_colour(uint32_t index)
{
    static const char *const colours[CHART_COLOURS] = {"#1f77b4", "#ff7f0e", "#2ca02c", "#98df8a",
                                                       "#c7e9c0", "#6baed6", "#fdbe85", "#636363",
                                                       "#969696", "#bcbddc", "#756bb1"};
    return colours[index % CHART_COLOURS];
}

const char *chart_role_colour(zero_role role)
{
    uint32_t row = 0;
    for (uint32_t other = 0; other < (uint32_t)role; other++) {
        row += zero_role_exists((zero_role)other) != 0;
    }
    return chart_colour(row);
}

void chart_part(double x, double y, double width, double height, const char *colour, FILE *out)
{
    fprintf(out, "<rect x=\"%.2f\" y=\"%.10g\" width=\"%.2f\" height=\"%.10g\" fill=\"%s\"><title>",
            x, y, width, height, colour);
}

void chart_part_end(FILE *out)
{
    fputs("</title></rect>\n", out);
}
