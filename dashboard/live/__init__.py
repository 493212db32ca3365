"""The live view's canvas: a component of plain JavaScript and CSS, joined from small modules, without a build step."""
