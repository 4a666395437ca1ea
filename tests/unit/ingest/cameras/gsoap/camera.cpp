// A camera on gSOAP, which the firmware of many cameras is built on: pull points, with WS-UsernameToken checked by gSOAP.
//
// A line of standard input is the value of an event; "forget" drops all subscriptions. Arguments: port, user, password,
// lease in seconds. Standard output has a line for each renewal.

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <string>

#include "Camera.nsmap"
#include "soapH.h"
#include "wsseapi.h"

struct Subscription {
    time_t until;
    std::deque<std::string> waiting;
};

static std::map<std::string, Subscription> subscriptions;
static std::string user, password, base;
static int lease = 60, made = 0;
static bool ended = false;

static void read_events(int wait_ms) {
    static std::string text;
    struct pollfd input = {0, POLLIN, 0};
    while (!ended && poll(&input, 1, wait_ms) > 0) {
        char buffer[4096];
        ssize_t count = read(0, buffer, sizeof buffer);
        if (count <= 0) {
            ended = true;
            return;
        }
        text.append(buffer, static_cast<size_t>(count));
        size_t end;
        while ((end = text.find('\n')) != std::string::npos) {
            std::string value = text.substr(0, end);
            text.erase(0, end + 1);
            if (value == "forget") subscriptions.clear();
            for (auto &each : subscriptions) each.second.waiting.push_back(value);
        }
        wait_ms = 0;
    }
}

static int refused(struct soap *soap, const char *code, const char *reason) {
    return soap_sender_fault_subcode(soap, code, reason, nullptr);
}

static int authenticated(struct soap *soap) {
    const char *name = soap_wsse_get_Username(soap);
    bool right = name && user == name && soap_wsse_verify_Password(soap, password.c_str()) == SOAP_OK;
    soap_wsse_delete_Security(soap);
    return right ? SOAP_OK : refused(soap, "ter:NotAuthorized", "Sender not authorized");
}

static Subscription *addressed(struct soap *soap) {
    auto each = subscriptions.find(soap->path);
    return each == subscriptions.end() || each->second.until < time(nullptr) ? nullptr : &each->second;
}

static int unknown(struct soap *soap) { return refused(soap, "ter:InvalidArgVal", "no such subscription"); }

int __tev__CreatePullPointSubscription(
    struct soap *soap, _tev__CreatePullPointSubscription *, _tev__CreatePullPointSubscriptionResponse *answer) {
    if (int error = authenticated(soap)) return error;
    std::string path = "/onvif/pull/" + std::to_string(++made);
    subscriptions[path] = {time(nullptr) + lease, {}};
    answer->SubscriptionReference = soap_new_wsa5__EndpointReferenceType(soap);
    answer->SubscriptionReference->Address = soap_strdup(soap, (base + path).c_str());
    answer->wsnt__CurrentTime = time(nullptr);
    answer->wsnt__TerminationTime = time(nullptr) + lease;
    return SOAP_OK;
}

int __tev__PullMessages(struct soap *soap, _tev__PullMessages *asked, _tev__PullMessagesResponse *answer) {
    if (int error = authenticated(soap)) return error;
    Subscription *one = addressed(soap);
    if (one && one->waiting.empty()) {
        read_events(atoi(asked->Timeout + 2) * 1000);  // PT8S
        one = addressed(soap);
    }
    if (!one) return unknown(soap);
    answer->__size = static_cast<int>(one->waiting.size());
    answer->wsnt__NotificationMessage = soap_new_wsnt__NotificationMessageHolderType(soap, answer->__size);
    for (int number = 0; number < answer->__size; number++) {
        auto &message = answer->wsnt__NotificationMessage[number];
        message.Topic = soap_new_wsnt__TopicExpressionType(soap);
        message.Topic->Dialect = soap_strdup(soap, "http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet");
        // Like other cameras, without a declaration of the prefix.
        message.Topic->__item = soap_strdup(soap, "tns1:Device/Trigger/DigitalInput");
        message.Message = soap_new_wsnt__Payload(soap);
        std::string text =
            "<tt:Message xmlns:tt=\"http://www.onvif.org/ver10/schema\" UtcTime=\"2026-01-01T00:00:00Z\" PropertyOperation=\"Changed\"><tt:Source><tt:SimpleItem "
            "Name=\"InputToken\" Value=\"1\"/></tt:Source><tt:Data><tt:SimpleItem Name=\"LogicalState\" Value=\"" +
            one->waiting[number] + "\"/></tt:Data></tt:Message>";
        message.Message->__any = soap_strdup(soap, text.c_str());
    }
    one->waiting.clear();
    answer->CurrentTime = time(nullptr);
    answer->TerminationTime = one->until;
    return SOAP_OK;
}

int __tev__Renew(struct soap *soap, _wsnt__Renew *, _wsnt__RenewResponse *answer) {
    if (int error = authenticated(soap)) return error;
    Subscription *one = addressed(soap);
    if (!one) return unknown(soap);
    answer->CurrentTime = time(nullptr);
    answer->TerminationTime = one->until = time(nullptr) + lease;
    std::cout << "renewed" << std::endl;
    return SOAP_OK;
}

int __tev__SetSynchronizationPoint(
    struct soap *soap, _tev__SetSynchronizationPoint *, _tev__SetSynchronizationPointResponse *) {
    return authenticated(soap);
}

// A Fault in place of a request.
int SOAP_ENV__Fault(
    struct soap *, char *, char *, char *, SOAP_ENV__Detail *, SOAP_ENV__Code *, SOAP_ENV__Reason *, char *, char *,
    SOAP_ENV__Detail *) {
    return SOAP_OK;
}

int main(int, char **arguments) {
    user = arguments[2], password = arguments[3], lease = atoi(arguments[4]);
    struct soap *soap = soap_new1(SOAP_IO_KEEPALIVE | SOAP_C_UTFSTRING);
    soap_register_plugin(soap, soap_wsse);
    soap->bind_flags = SO_REUSEADDR;
    soap->accept_timeout = -100000;  // in microseconds
    soap->recv_timeout = soap->send_timeout = 60;
    if (!soap_valid_socket(soap_bind(soap, "127.0.0.1", atoi(arguments[1]), 100))) {
        soap_print_fault(soap, stderr);
        return 1;
    }
    base = std::string("http://0.0.0.0:") + arguments[1];  // many cameras name this address
    std::cout << "ready" << std::endl;
    while (!ended) {
        read_events(0);
        if (soap_valid_socket(soap_accept(soap))) soap_serve(soap);
        soap_destroy(soap);
        soap_end(soap);
    }
    return 0;
}
