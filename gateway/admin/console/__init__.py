"""The console: pages for a browser at `/` of the admin port.

assets   files of static/ and vendor/, and their headers     sessions   who has logged in; pure
login    /login, /logout, /session, and the cookie           event_streams   what moves, as server-sent events
traffic_history  an hour of figures, sampled from the metrics        handlers   all handlers of these
pooled_bound   hit rate of one cache of the fleet's size, from sampled blocks; pure

Pages read the admin API like any client; static/app.js is the map of their code.
"""
