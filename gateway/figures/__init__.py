"""Tables and plots as Markdown, SVG and self-contained pages: what measurements and simulations are told with."""
