"""Results as tables and pictures."""

from .plots import plot_curves
from .table import html_table, markdown_table, rich_table, show_table

__all__ = ["html_table", "markdown_table", "plot_curves", "rich_table", "show_table"]
