"""What happens is told: a line for each request, the program's own messages. Never what a prompt says.

end     how a request ended, and by whose fault     line    a line in the log of it
sink    lines go out aside, and never hold the loop  logs    how messages look, and where they go
"""
