"""The dashboard: pages that the API serves beside itself, without a build step and without the internet.

    door       log in by a token, log out                  Feed, Topic   what changes, to every open page
    pages      the HTML around every page                  fleet, …      what one kind of page shows, as Topics
    assets     scripts, styles and vendored libraries      static/js     a module per page; `live.js` hears the feed

A page is a skeleton in HTML, its first data in a data block, and one script, which draws from that data and again
whenever the feed brings a change. Everything else it asks of the public API, with the session's cookie.
"""
