"""Authentication, authorisation and rates of the gateway.

gate                       admission and identity of each request
proxies, rates             client addresses behind proxies; rates of requests, bytes and connections
username_token, bearer     credentials in a message or its head
users, users_file, ldap_users   passwords, and limits of failures
policy, grants             rights to publish, subscribe, serve and manage, by topic

All of it is off by default, at the cost of one comparison with None. No operation is known here.
"""
