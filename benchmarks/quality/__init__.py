"""How good the images of each recipe are: the table of docs/quality.md, measured again by one command."""
