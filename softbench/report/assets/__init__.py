"""What pages of several commands share: the library that draws curves in a browser, and the data that a page embeds."""
