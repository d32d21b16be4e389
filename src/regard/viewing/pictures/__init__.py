"""Pictures: views laid out as marks on paper, then written as SVG, PNG, PDF or GIF."""
