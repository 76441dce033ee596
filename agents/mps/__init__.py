"""MPS: one daemon per GPU, asked by text and judged by it; shares proven before traffic, faults left behind."""
