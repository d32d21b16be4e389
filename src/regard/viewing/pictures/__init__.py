"""Pictures: views laid out as marks on canvas, then written as SVG, PNG, PDF or GIF."""
