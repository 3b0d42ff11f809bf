"""The files of the page: HTML, a style sheet and modules of JavaScript, served as they are."""
