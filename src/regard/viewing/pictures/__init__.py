"""Pictures: each view puts marks on a canvas, which is written as SVG, PNG, PDF or GIF."""
