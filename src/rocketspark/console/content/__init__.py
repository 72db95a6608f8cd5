"""What pages show and give of messages: searches as addresses, bodies for people, files. Start with asked."""
