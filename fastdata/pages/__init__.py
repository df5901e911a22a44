"""Self-contained pages of HTML, made from templates."""
