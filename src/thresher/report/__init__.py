"""Reports: tables, figures and self-contained HTML pages."""
